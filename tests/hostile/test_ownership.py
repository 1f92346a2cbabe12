"""Jobs whose ids begin with the same six digits, and what one of them can delete of the other."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.aligned.rows import BeginCheckpoint, PutHandle, TakeLeadership
from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointRecord, CheckpointStatus
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.maintenance.disposal import dispose
from airflow_provider_statecheck.storage.discarding import StorageDiscarder
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import encode_metadata, load_document
from tests.job_savepoints import begin_savepoint
from tests.messages import make_leadership
from tests.unit.written_stage import WrittenStage, collect, local_path


def jobs_with_one_beginning(seed: int) -> tuple[str, str]:
    """Return two names of jobs whose ids begin with the same six digits."""
    draw, seen = random.Random(seed), dict[str, str]()
    while True:
        name = f"job-{draw.getrandbits(64):x}"
        other = seen.setdefault(job_id_of(name)[:6], name)
        if other != name:
            return other, name


@pytest.fixture
def stage(tmp_path: Path) -> WrittenStage:
    return WrittenStage(CheckpointStorage.open(str(tmp_path / "base")))


def savepoint_of(stage: WrittenStage, job: str) -> CheckpointRecord:
    """Let a stage take a savepoint, and return its row."""
    attempt = stage.attempt(job)
    stage.request_savepoint(attempt, f"{stage.storage.base_uri}/savepoints")
    stage.take(attempt, stage.snapshot(attempt, "raw", rows=3))
    attempt.finish(AttemptStatus.FAILED)
    [savepoint] = [c for c in stage.coordinator.describe(job_id_of(job)).checkpoints if c.properties.is_savepoint]
    return savepoint


def test_no_message_of_a_leader_names_the_directory_of_a_savepoint() -> None:
    assert {"location", "pointer", "directory"}.isdisjoint(field.name for field in fields(BeginCheckpoint))


@pytest.mark.parametrize(
    "place", ["{base}/{theirs}/chk-1", "{base}/{own}/../{theirs}/chk-1", "{base}/{own}/chk-9-of-others", "{saved}"]
)
def test_no_handle_of_a_leader_makes_a_directory_of_another_job_its_own(stage: WrittenStage, place: str) -> None:
    saved = savepoint_of(stage, "theirs").location
    stage.run("own", checkpoints=1)
    rows, base = AlignedCheckpoints(stage.store), stage.storage.base_uri
    leader = rows.lead(_leadership("own", base))
    location = place.format(base=base, theirs=job_id_of("theirs"), own=leader.job_id, saved=saved)
    handle = PutHandle(
        leader=leader,
        checkpoint_id=9,
        location=location,
        metadata=FileStateHandle(f"{location}/_metadata", 1, "0" * 64),
        properties=CheckpointProperties.for_checkpoint(),
        completed_at=datetime.now(UTC),
    )
    with pytest.raises(InvalidConfigurationError, match="location"):
        rows.put_handle(handle)
    read = rows.put_handle(replace(handle, properties=replace(handle.properties, unclaimed=True)))
    with pytest.raises(InvalidConfigurationError, match="location"):
        rows.put_handle(replace(handle, version=read.epoch))
    rows.remove_handle(leader, 9)
    files = stage.files()
    collect(stage, "own")
    assert {name for name in files if name not in stage.files() and job_id_of("own") not in name} == set()
    assert stage.store.claim(saved) is None


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 20))])
def test_savepoint_belongs_to_the_job_with_its_row_and_not_to_one_with_the_same_digits(
    seed: int, stage: WrittenStage
) -> None:
    owner, thief = jobs_with_one_beginning(seed)
    taken = savepoint_of(stage, owner)
    files = stage.files()
    rows = AlignedCheckpoints(stage.store)
    stage.run(thief, checkpoints=1)
    begun = begin_savepoint(rows, operator_id_of("aggregate"), thief)
    leader = rows.lead(_leadership(thief, stage.storage.base_uri))
    assert rows.owns(leader, begun.location)
    assert not rows.owns(leader, taken.location)
    discarder = StorageDiscarder(stage.storage, leader.job_id, partial(rows.owns, leader))
    ways: tuple[Callable[[str], None], ...] = (
        discarder.discard_checkpoint,
        discarder.discard_location,
        discarder.discard_file,
    )
    for delete in ways:
        with pytest.raises(InvalidConfigurationError, match="nothing was deleted"):
            delete(taken.location)
    collect(stage, thief)
    assert files.items() <= stage.files().items()


def test_savepoint_is_disposed_of_in_the_row_of_its_owner_although_its_metadata_names_another_job(
    stage: WrittenStage,
) -> None:
    owner, thief = jobs_with_one_beginning(7)
    taken = savepoint_of(stage, owner)
    stage.run(thief, checkpoints=1)
    _forge(stage, taken, job_id_of(thief))
    dispose(stage.savepoints, stage.maintenance, lambda _: stage.storage, taken.location)
    row = stage.coordinator.checkpoint(taken.job_id, taken.checkpoint_id)
    assert row is not None
    assert row.status is CheckpointStatus.DISPOSED
    assert row.discarded_at is not None


def test_a_disposal_leaves_no_claim_in_the_name_of_a_job_that_has_no_row_of_the_savepoint(stage: WrittenStage) -> None:
    owner, thief = jobs_with_one_beginning(11)
    taken = savepoint_of(stage, owner)
    stage.run(thief, checkpoints=1)
    for pointer, job in ((f"{taken.location[:-4]}0000", thief), (taken.location, thief)):
        stage.savepoints.dispose(pointer, job_id_of(job), dry_run=True)
        assert stage.store.claim(pointer) is None
    stage.savepoints.dispose(f"{taken.location[:-4]}0000", job_id_of(thief))
    assert stage.store.claim(f"{taken.location[:-4]}0000") is None
    stage.savepoints.dispose(taken.location, job_id_of(thief))
    claim = stage.store.claim(taken.location)
    assert claim is not None
    assert claim.job_id == taken.job_id


def _forge(stage: WrittenStage, taken: CheckpointRecord, job_id: JobId) -> None:
    document = replace(load_document(stage.storage, taken), job_id=job_id)
    uri = f"{taken.location}/_metadata"
    local_path(uri).write_bytes(encode_metadata(document, uri=uri))


def _leadership(job: str, base: str) -> TakeLeadership:
    return make_leadership(job_name=job, storage_base=base, attempt_key=new_key())
