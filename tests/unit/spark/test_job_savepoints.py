"""Stages that start from their members of a savepoint of the whole job, without Spark."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of, restorable_uids
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, RestoreMode
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointStatus
from airflow_provider_statecheck.exceptions import IncompatibleCheckpointError, InvalidConfigurationError
from airflow_provider_statecheck.gateway.time_travel import find_fork_source
from airflow_provider_statecheck.maintenance.savepoints import serve_idle
from airflow_provider_statecheck.spark.restore import RestoredStage
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import document_uris, load_document
from tests.job_savepoints import add_row, save_job
from tests.messages import make_savepoint_request, present, source_at
from tests.unit.written_stage import JOB, WrittenStage, local_path

UIDS = ("extract", "load[de]", "load[fr]")


@pytest.fixture
def pointer(stage: WrittenStage, tmp_path: Path) -> str:
    """A savepoint of three stages; a fourth one had no checkpoint."""
    taken = []
    for uid in UIDS:
        attempt = stage.attempt(uid=uid)
        taken.append(stage.take(attempt, stage.snapshot(attempt, "rows"), state=[uid] * 4000))
        attempt.finish(AttemptStatus.FINISHED)
    return save_job(stage.storage, taken, f"file://{tmp_path}/savepoints", empty=("notify",))


def restored(stage: WrittenStage, pointer: str, uid: str, job: str = "heir", **changes: Any) -> RestoredStage:
    attempt = stage.attempt(job, uid=uid, restore_from=source_at(stage.storage, pointer, uid, **changes))
    return present(attempt.restore())


@pytest.mark.parametrize("uid", UIDS)
def test_each_stage_restores_the_member_with_its_uid(stage: WrittenStage, pointer: str, uid: str) -> None:
    found = restored(stage, pointer, uid)
    assert (found.document.uid, found.state) == (uid, {"done": [uid] * 4000})
    assert all(f"{pointer}/" in uri for uri in document_uris(found.document))
    assert found.checkpoint.properties == CheckpointProperties.for_unclaimed_snapshot(uid)
    assert found.checkpoint.full_size_bytes == found.document.named_bytes


def test_a_retry_before_the_first_checkpoint_restores_the_member_again(stage: WrittenStage, pointer: str) -> None:
    first = restored(stage, pointer, "load", renamed_uids={"extract": "load"})
    again = present(stage.attempt("heir", uid="load", restore_from=None).restore())
    assert again.document == first.document


def test_the_member_remains_readable_when_the_savepoint_was_moved(stage: WrittenStage, pointer: str) -> None:
    moved = f"{pointer}-moved"
    local_path(pointer).rename(local_path(moved))
    assert restored(stage, moved, "extract").state == {"done": ["extract"] * 4000}


@pytest.mark.parametrize(
    ("uid", "renamed", "found"),
    [
        ("read", {"extract": "read"}, "extract"),
        ("read", {"extract": "pull", "pull": "read"}, "extract"),
        ("write[fr]", {"load": "write"}, "load[fr]"),
        ("write[x]", {"load[de]": "write[x]"}, "load[de]"),
        ("extract", {"other": "extract"}, "extract"),
    ],
    ids=["stage", "twice", "all instances", "one instance", "unused"],
)
def test_a_renamed_stage_restores_the_member_with_its_old_uid(
    stage: WrittenStage, pointer: str, uid: str, renamed: dict[str, str], found: str
) -> None:
    assert restored(stage, pointer, uid, renamed_uids=renamed).document.uid == found


def test_a_uid_that_was_given_away_is_not_restored_under_it() -> None:
    assert restorable_uids("a", {"a": "b"}) == ()
    assert restorable_uids("a[k]", {"a": "b"}) == ()
    assert restorable_uids("a", {"a": "b", "b": "a"}) == ("b",)


def test_an_unknown_uid_is_refused_with_the_uids_of_the_savepoint(stage: WrittenStage, pointer: str) -> None:
    with pytest.raises(IncompatibleCheckpointError, match=r"'extract', 'load\[de\]', 'load\[fr\]', 'notify'") as caught:
        source_at(stage.storage, pointer, "load[es]")
    assert "renamed_uids={'load[de]': 'load[es]'}" in str(caught.value)


def test_an_unknown_uid_starts_with_empty_state_if_that_is_allowed(
    stage: WrittenStage, pointer: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert source_at(stage.storage, pointer, "load[es]", allow_non_restored_state=True) is None
    assert "'load[es]' starts with empty state" in caplog.text


def test_a_stage_that_had_no_checkpoint_starts_fresh(
    stage: WrittenStage, pointer: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert source_at(stage.storage, pointer, "notify") is None
        assert source_at(stage.storage, pointer, "send", renamed_uids={"notify": "send"}) is None
    assert caplog.text == ""


def test_no_stage_can_claim_the_savepoint_of_all(stage: WrittenStage, pointer: str) -> None:
    with pytest.raises(InvalidConfigurationError, match="claim_mode='no_claim'"):
        source_at(stage.storage, pointer, "extract", mode=RestoreMode.CLAIM)


def test_the_coordinator_refuses_the_claim_too(stage: WrittenStage, pointer: str) -> None:
    found = present(source_at(stage.storage, pointer, "extract"))
    with pytest.raises(InvalidConfigurationError, match="savepoint of the whole job"):
        stage.attempt("heir", uid="extract", restore_from=replace(found, mode=RestoreMode.CLAIM))
    attempt = stage.attempt("heir", uid="extract", restore_from=found)
    loaded = present(attempt.load())
    with pytest.raises(InvalidConfigurationError, match="savepoint of the whole job"):
        stage.coordinator.confirm_restore(loaded.confirmation(attempt.grant.attempt, claim=True))


def test_a_savepoint_of_a_stage_that_restored_its_member_has_only_the_member(stage: WrittenStage, pointer: str) -> None:
    attempt = stage.attempt("heir", uid="extract", restore_from=source_at(stage.storage, pointer, "extract"))
    attempt.restore()
    attempt.finish(AttemptStatus.FAILED)
    view = stage.coordinator.describe(job_id_of("heir"))
    [operator] = view.operators
    stage.savepoints.request(make_savepoint_request(operator))
    target = pointer.rpartition("/")[0]
    [taken] = serve_idle(stage.savepoints, stage.coordinator.describe(view.job.job_id), CheckpointStorage.open, target)
    assert taken.problem is None
    rows = stage.coordinator.describe(view.job.job_id).checkpoints
    [savepoint] = [c for c in rows if c.status is CheckpointStatus.COMPLETED and not c.properties.unclaimed]
    document = load_document(stage.storage, savepoint)
    assert (document.uid, document.members) == ("extract", ())


@pytest.mark.parametrize("by", ["pointer", "id"])
def test_a_fork_starts_from_its_member(stage: WrittenStage, pointer: str, by: str) -> None:
    assert stage.store is not None
    row = add_row(stage.store, stage.storage, pointer)
    found = find_fork_source(
        stage.coordinator,
        stage.storage,
        JOB,
        pointer if by == "pointer" else str(row.checkpoint_id),
        uid="extract",
        renamed_uids={},
        allow_non_restored_state=False,
    )
    assert found is not None
    assert (found.pointer, found.member, found.problem) == (pointer, "extract", None)
