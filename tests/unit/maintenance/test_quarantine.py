"""Orphans that stay for a while before they are deleted."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.ids import epoch_name, job_id_of, orphans_uri, shared_uri, taskowned_uri
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointStatus
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.maintenance.gc import CollectedJob, PruneRequest, collect_job, prune_job
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import SnapshotHandle, encode_metadata, load_document
from airflow_provider_statecheck.testing.faults import FaultMode, FaultPlan, faulty_storage
from tests.messages import make_owner
from tests.unit.written_stage import JOB, WrittenStage, local_path

DAY = timedelta(days=1)


@pytest.fixture
def orphan(stage: WrittenStage) -> SnapshotHandle:
    dead = stage.attempt()
    orphan = stage.snapshot(dead, "orphan")
    stage.take(dead, stage.snapshot(dead, "kept"))
    dead.finish(AttemptStatus.FAILED)
    return orphan


def collect(stage: WrittenStage, stay: timedelta | None = DAY, **options: Any) -> CollectedJob:
    opener = options.pop("opener", CheckpointStorage.open)
    return collect_job(stage.maintenance, job_id_of(JOB), opener, quarantine=stay, **options)


def notes(stage: WrittenStage) -> Path:
    return local_path(orphans_uri(stage.storage.base_uri, job_id_of(JOB)))


def test_an_orphan_goes_when_it_still_is_one_a_day_after_it_was_found(stage, orphan):
    assert (collect(stage).quarantined, collect(stage).deleted) == ([orphan.uri], {})
    stage.clock.advance(DAY.total_seconds() - 1)
    assert collect(stage).quarantined == [orphan.uri]
    stage.clock.advance(1)
    done = collect(stage)
    assert (list(done.deleted), done.quarantined) == ([orphan.uri], [])
    assert collect(stage) == CollectedJob(job=JOB)
    assert not notes(stage).exists()


def test_a_clock_that_was_far_ahead_keeps_no_orphan_longer_than_a_day(stage, orphan):
    stage.clock.advance(30 * DAY.total_seconds())
    assert collect(stage).quarantined == [orphan.uri]
    stage.clock.advance(-30 * DAY.total_seconds())
    assert collect(stage).quarantined == [orphan.uri]
    stage.clock.advance(DAY.total_seconds())
    assert list(collect(stage).deleted) == [orphan.uri]


def test_a_dry_run_tells_both_lists_and_notes_nothing(stage, orphan):
    assert collect(stage, dry_run=True).quarantined == [orphan.uri]
    assert not notes(stage).exists()
    collect(stage)
    stage.clock.advance(DAY.total_seconds())
    late = stage.attempt()
    second = stage.snapshot(late, "second")
    late.finish(AttemptStatus.FAILED)
    before = notes(stage).read_bytes()
    told = collect(stage, dry_run=True)
    assert (list(told.deleted), told.quarantined) == ([orphan.uri], [second.uri])
    assert notes(stage).read_bytes() == before
    assert stage.storage.list_files(orphan.uri)


def test_what_is_named_again_leaves_the_quarantine(stage, orphan):
    collect(stage)
    attempt = stage.attempt()
    stage.take(attempt, orphan)
    attempt.finish(AttemptStatus.FAILED)
    stage.clock.advance(DAY.total_seconds())
    collect(stage)
    assert not notes(stage).exists() or orphan.uri.rpartition("/")[2] not in notes(stage).read_text()
    assert stage.storage.list_files(orphan.uri)


def test_what_rows_say_has_ended_goes_at_once(stage):
    stage.run()
    done = collect(stage)
    assert (len(done.deleted), done.quarantined) == (4, [])


def test_a_collection_without_quarantine_deletes_at_once_and_drops_the_notes(stage, orphan):
    collect(stage)
    assert notes(stage).exists()
    assert list(collect(stage, None).deleted) == [orphan.uri]
    assert not notes(stage).exists()


def test_a_job_that_is_removed_leaves_no_notes(stage, orphan):
    collect(stage)
    request = PruneRequest(job_ids=(job_id_of(JOB),))
    assert prune_job(stage.maintenance, job_id_of(JOB), request, CheckpointStorage.open).is_removed
    assert stage.files() == {}


@pytest.mark.parametrize("damage", [b"{", b"[]", b'{"shared": 1}', b'{"shared": "2020-01-01T00:00:00"}'])
def test_damaged_notes_begin_the_wait_anew(stage, orphan, damage):
    collect(stage)
    stage.clock.advance(DAY.total_seconds())
    notes(stage).write_bytes(damage)
    assert collect(stage).quarantined == [orphan.uri]
    stage.clock.advance(DAY.total_seconds())
    assert list(collect(stage).deleted) == [orphan.uri]


def test_less_than_a_day_is_refused(stage, orphan):
    with pytest.raises(InvalidConfigurationError, match="a day or more"):
        collect(stage, timedelta(hours=23))


@pytest.mark.parametrize("mode", [FaultMode.ERROR, FaultMode.REPLY_LOST])
def test_a_collection_that_fails_at_any_call_deletes_nothing_early_and_is_made_good(tmp_path, mode):
    total = 1
    point = 0
    while point < total:
        point += 1
        stage = WrittenStage(CheckpointStorage.open(f"{tmp_path}/{point}"))
        dead = stage.attempt()
        uri = stage.snapshot(dead, "orphan").uri
        dead.finish(AttemptStatus.FAILED)
        plan = FaultPlan(point, mode)
        opener = lambda base, plan=plan: faulty_storage(CheckpointStorage.open(base), plan)  # noqa: E731 - one line
        collect(stage, opener=opener)
        assert stage.storage.list_files(uri)
        collect(stage)
        stage.clock.advance(DAY.total_seconds())
        collect(stage, opener=opener)
        total = len(plan.calls)
        collect(stage)
        assert stage.storage.list_files(uri) == {}


def test_shared_state_of_ended_attempts_that_no_checkpoint_names_goes(stage):
    dead = stage.attempt()
    ref = dead.grant.attempt
    uri = f"{shared_uri(stage.storage.base_uri, ref.job_id, ref.operator_id)}/state/{epoch_name(ref.epoch)}"
    stage.storage.write_bytes(uri, b"state")
    collect(stage, None)
    assert stage.storage.exists(uri)
    dead.finish(AttemptStatus.FAILED)
    collect(stage, None)
    assert not stage.storage.exists(uri)


def test_what_belongs_to_a_task_alone_stays(stage):
    dead = stage.attempt()
    ref = dead.grant.attempt
    uri = f"{taskowned_uri(stage.storage.base_uri, ref.job_id)}/{ref.operator_id}/{epoch_name(ref.epoch)}"
    stage.storage.write_bytes(uri, b"a log that is read later")
    dead.finish(AttemptStatus.FAILED)
    collect(stage, None)
    assert stage.storage.exists(uri)


def checkpoint_file(stage: WrittenStage, checkpoint_id: int, name: str, data: bytes = b"state") -> str:
    uri = f"{stage.storage.base_uri}/{job_id_of(JOB)}/chk-{checkpoint_id}/{name}"
    stage.storage.write_bytes(uri, data)
    return uri


def test_state_in_a_live_checkpoint_that_its_metadata_does_not_name_goes(stage):
    attempt = stage.attempt()
    stage.take(attempt, state=["x" * 100] * 1000)
    unnamed = checkpoint_file(stage, 1, epoch_name(1))
    collect(stage, None)
    assert stage.storage.exists(unnamed)
    attempt.finish(AttemptStatus.FAILED)
    collect(stage, None)
    assert not stage.storage.exists(unnamed)
    assert stage.attempt().restore() is not None


def forgotten(stage: WrittenStage) -> None:
    """Leave a job whose first checkpoints have no rows any more."""
    stage.run()
    collect(stage, None)
    stage.clock.advance(40 * DAY.total_seconds())
    assert prune_job(stage.maintenance, job_id_of(JOB), PruneRequest(), CheckpointStorage.open).checkpoints == 2


def test_the_directory_of_an_unfinished_checkpoint_without_a_row_goes(stage):
    forgotten(stage)
    late = checkpoint_file(stage, 1, epoch_name(1))
    collect(stage, None)
    assert not stage.storage.exists(late)


def test_the_directory_of_a_checkpoint_whose_id_was_not_given_out_stays(stage):
    """The rows are older than the bytes, as after a backup was restored."""
    stage.run()
    newer = checkpoint_file(stage, 4, epoch_name(1))
    collect(stage, None)
    assert stage.storage.exists(newer)


def test_a_complete_checkpoint_without_a_row_stays_with_what_it_names(stage):
    forgotten(stage)
    writer = stage.attempt()
    lost = stage.snapshot(writer, "lost")
    writer.finish(AttemptStatus.FAILED)
    known = load_document(stage.storage, stage.coordinator.describe(job_id_of(JOB)).checkpoints[-1])
    uri = f"{stage.storage.base_uri}/{job_id_of(JOB)}/chk-1/_metadata"
    other = replace(known, checkpoint_id=1, request_key="f" * 32, snapshots=(lost,))
    checkpoint_file(stage, 1, "_metadata", encode_metadata(other, uri=uri))
    assert collect(stage, None).deleted == {}
    assert stage.storage.exists(lost.uri)


def test_a_checkpoint_without_a_row_stays_where_its_metadata_cannot_be_read(stage):
    forgotten(stage)
    damaged = checkpoint_file(stage, 1, "_metadata", b"damaged")
    collect(stage, None)
    assert stage.storage.exists(damaged)


def test_the_directory_of_an_unfinished_checkpoint_without_a_row_stays_while_an_attempt_is_open(stage):
    forgotten(stage)
    late = checkpoint_file(stage, 1, epoch_name(1))
    stage.attempt(uid="other")
    collect(stage, None)
    assert stage.storage.exists(late)


def test_a_checkpoint_that_an_attempt_of_a_new_generation_began_from_stays(stage):
    """It has two rows: its own has ended, that of the attempt has not."""
    first = stage.attempt()
    taken = stage.take(first, stage.snapshot(first, "raw"))
    first.finish(AttemptStatus.FAILED)
    source = stage.source_at(taken.location)
    owner = make_owner(run_id="a new run under the old date")
    again = stage.attempt(owner=owner, restore_from=source)
    assert again.restore() is not None
    again.finish(AttemptStatus.FAILED)
    with stage.store.transaction(job_id_of(JOB)) as tx:
        row = tx.checkpoint(1)
        tx.update_checkpoint(
            replace(row, status=CheckpointStatus.SUBSUMED, ended_at=tx.now), expected=CheckpointStatus.COMPLETED
        )
    assert collect(stage, None).deleted == {}
    assert stage.attempt(owner=owner).restore() is not None
