"""What ends a savepoint of a whole job early, or must not end it."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import pytest

from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.fencing import UnknownLiveness
from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key
from airflow_provider_statecheck.checkpoint.properties import RestoreSource
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointStatus, JobAction, RequestStatus
from airflow_provider_statecheck.checkpoint.statistics import statistics_of
from airflow_provider_statecheck.checkpoint.transitions import roll_back
from airflow_provider_statecheck.exceptions import CorruptStateError
from airflow_provider_statecheck.maintenance.action_targets import UserAction
from airflow_provider_statecheck.maintenance.disposal import dispose
from airflow_provider_statecheck.maintenance.job_restore import JobRestoring, RestoreJob, read_savepoint
from airflow_provider_statecheck.maintenance.rewind import JobRewinding, RewindJob
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.messages import make_owner
from tests.unit.maintenance.test_job_savepoints import SavedJob
from tests.unit.written_stage import JOB, local_path

FIRST, SECOND = "2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00"


class Interfering:
    """A storage that calls a function after it has written the metadata of a savepoint."""

    def __init__(self, storage: CheckpointStorage, interfere: Callable[[str], None]) -> None:
        self._storage = storage
        self._interfere = interfere

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def allowing(self, *uris: str) -> Self:
        return type(self)(self._storage.allowing(*uris), self._interfere)

    def write_bytes(self, uri: str, data: bytes, **options: Any) -> None:
        self._storage.write_bytes(uri, data, **options)
        if uri.endswith("/_metadata"):
            self._interfere(uri.rpartition("/")[0])


class CopyingLate(Interfering):
    """A storage that calls the function before it copies a snapshot."""

    def copy_directory(self, source_uri: str, target_uri: str, **options: Any) -> None:
        self._interfere(target_uri)
        self._storage.copy_directory(source_uri, target_uri, **options)


def test_a_savepoint_that_is_disposed_of_while_it_is_finalized_fails(job: SavedJob) -> None:
    job.run("extract")
    found: list[CheckpointStatus] = []

    def interfere(pointer: str) -> None:
        found.append(job.savepoint(key).status)
        dispose(job.stage.savepoints, job.stage.maintenance, CheckpointStorage.open, pointer)

    def opened(uri: str) -> Any:
        return Interfering(CheckpointStorage.open(uri), interfere)

    running = job.begin("load")
    key = job.request()
    job.stage.clock.advance(1)
    job.take(running)
    sound, job.service = job.service, replace(job.service, open_storage=opened)
    job.serve()
    job.service = sound
    job.serve()
    assert found == [CheckpointStatus.FINALIZING]
    assert (job.outcome(key).status, job.savepoint(key).status) == (RequestStatus.FAILED, CheckpointStatus.ABORTED)
    assert "disposed of" in job.outcome(key).failure_message
    assert all(operator.pinned_checkpoint is None for operator in job.view.operators)
    assert not CheckpointStorage.open(job.target).list_files(job.target)


def test_what_was_copied_for_a_savepoint_that_another_process_has_ended_meanwhile_is_deleted(job: SavedJob) -> None:
    job.run("extract")
    running = job.begin("load")
    ended: list[CheckpointStatus] = []
    key = job.request()
    job.serve()
    job.stage.clock.advance(1)
    job.take(running)

    def interfere(_: str) -> None:
        if not ended:
            ended.append(job.savepoint(key).status)
            job.stage.clock.advance(2 * 86_400)
            job.new_service().take(job_id_of(JOB))
            assert not CheckpointStorage.open(job.target).list_files(job.target)

    def opened(uri: str) -> Any:
        return CopyingLate(CheckpointStorage.open(uri), interfere)

    job.service = replace(job.service, open_storage=opened)
    job.serve()
    assert ended == [CheckpointStatus.PENDING]
    assert job.savepoint(key).discarded_at is not None
    assert not CheckpointStorage.open(job.target).list_files(job.target)


def test_a_savepoint_that_expires_names_only_the_stages_without_a_member(job: SavedJob) -> None:
    job.run("extract")
    job.begin("load")
    key = job.request()
    job.serve()
    job.stage.clock.advance(2 * 86_400)
    job.serve()
    assert job.outcome(key).status is RequestStatus.FAILED
    assert job.outcome(key).failure_message == "The checkpoint expired before 'load' had acknowledged"
    assert job.operator("extract").pinned_checkpoint is None


def test_a_savepoint_that_expires_before_its_members_are_copied_names_no_stage(job: SavedJob) -> None:
    job.run("extract")
    running = job.begin("load")
    key = job.request()
    job.serve()
    job.stage.clock.advance(1)
    taken = job.take(running)
    with job.stage.store.transaction(job_id_of(JOB)) as tx:
        operator = tx.operator(taken.operator_id)
        assert operator is not None
        tx.save_operator(replace(operator, pinned_checkpoint=taken.checkpoint_id))
    job.stage.clock.advance(2 * 86_400)
    job.serve()
    failed = job.outcome(key)
    assert failed.failure_message == "The savepoint expired before the copies of its members were finished"


def test_a_savepoint_that_expires_after_a_stage_has_lost_its_checkpoints_counts_as_one_failure(job: SavedJob) -> None:
    taken = job.run("load")
    job.begin("other")
    key = job.request()
    job.serve()
    with job.stage.store.transaction(job_id_of(JOB)) as tx:
        roll_back(tx, tx.open_checkpoints(taken.operator_id))
    job.stage.clock.advance(2 * 86_400)
    job.serve()
    assert job.outcome(key).failure_reason == CheckpointFailureReason.CHECKPOINT_EXPIRED.value
    operator = job.view.operator_of_job
    assert operator is not None
    assert statistics_of(job.view, operator).counts.failed == 1


def test_a_member_that_is_rolled_back_after_it_was_pinned_is_not_copied(job: SavedJob) -> None:
    for number, run_key in enumerate((FIRST, SECOND)):
        job.run("load", owner=make_owner(run_key=run_key, run_id=f"run-{number}"))
    other = job.begin("other")
    key = job.request()
    job.serve()
    assert job.operator("load").pinned_checkpoint == 2
    job.stage.clock.advance(1)
    job.take(other)
    other.finish(AttemptStatus.FINISHED)
    savepoints, calls = job.service.savepoints, itertools.count(1)

    class Rewinding:
        """Rewinds the job between the choice of the members and their copies."""

        def __getattr__(self, name: str) -> Any:
            return getattr(savepoints, name)

        def pin(self, *arguments: Any) -> Any:
            if next(calls) == 2:
                rewinding = JobRewinding(job.stage.store, UnknownLiveness())
                rewinding.rewind(RewindJob(job_id=job_id_of(JOB), run_key=SECOND, uid="load"))
            return savepoints.pin(*arguments)

    sound, interfering = job.service, Rewinding()
    job.service = replace(job.service, savepoints=interfering)  # type: ignore[arg-type]
    job.serve()
    job.service = sound
    job.serve()
    assert job.outcome(key).status is RequestStatus.FAILED
    assert "'load' was rolled back" in job.outcome(key).failure_message


def test_a_fork_of_a_stage_does_not_end_a_savepoint(job: SavedJob) -> None:
    airflow = (("dag_id", "nightly"), ("task_id", "load"), ("run_id", "run"), ("map_index", "-1"))
    taken = job.run("load", owner=make_owner(airflow=airflow))
    other = job.begin("other")
    key = job.request()
    job.serve()
    before = job.view
    wanted = UserAction(
        job_id=job_id_of(JOB),
        action=JobAction.FORK,
        checkpoint_id=taken.checkpoint_id,
        request_key=new_key(),
        requested_by="anna",
    )
    job.stage.actions.fork(wanted, lambda point: "fork__1")
    assert (job.view.operators, job.view.attempts, job.view.checkpoints) == (
        before.operators,
        before.attempts,
        before.checkpoints,
    )
    job.stage.clock.advance(1)
    given = job.take(other)
    job.serve()
    assert job.members(key) == {"load": taken.checkpoint_id, "other": given.checkpoint_id}
    other.finish(AttemptStatus.FINISHED)


def test_a_savepoint_whose_metadata_has_changed_is_not_restored_in_place(job: SavedJob) -> None:
    job.run("extract")
    row = job.savepoint(job.saved())
    uri = f"{row.location}/_metadata"
    storage = CheckpointStorage.open(row.location)
    header, body = storage.read_bytes(uri).split(b"\n", 1)
    body += b" "
    # The checksum in the file is that of the changed content, as after a copy of another savepoint.
    signed = b" ".join([*header.split(b" ")[:2], hashlib.sha256(body).hexdigest().encode()])
    storage.write_bytes(uri, signed + b"\n" + body, overwrite=True)
    saved = read_savepoint(CheckpointStorage.open, row.location, job.view.job)
    request = RestoreJob(job_id=job_id_of(JOB), savepoint=saved, requested_by="anna")
    with pytest.raises(CorruptStateError, match=r"_metadata as it was written.*nothing was changed"):
        JobRestoring(job.stage.store, UnknownLiveness()).restore(request)
    assert all(operator.in_place_restore is None for operator in job.view.operators)


def test_a_stage_without_a_member_ignores_the_savepoint_that_its_task_names(job: SavedJob) -> None:
    job.run("extract")
    key = job.saved()
    job.run("late")
    saved = read_savepoint(CheckpointStorage.open, job.savepoint(key).location, job.view.job)
    restoring = JobRestoring(job.stage.store, UnknownLiveness())
    restoring.restore(RestoreJob(job_id=job_id_of(JOB), savepoint=saved, requested_by="anna"))
    own = RestoreSource(
        pointer="file:///gone/savepoint-5d2c4a-0f6f7c1e2b3a",
        metadata_uri="",
        metadata_size=0,
        metadata_sha256="",
        problem="it was deleted long ago",
    )
    late = job.begin("late", owner=make_owner(clear_marker="cleared"), restore_from=own)
    assert late.restore() is None


@pytest.mark.parametrize("kind", ["state", "data"])
def test_a_savepoint_with_changed_bytes_is_not_restored_in_place(job: SavedJob, kind: str) -> None:
    attempt = job.begin("extract")
    job.take(attempt, state=["an item that is finished"] * 2000)
    attempt.finish(AttemptStatus.FINISHED)
    row = job.savepoint(job.saved())
    folder = local_path(row.location)
    files = [path for path in folder.rglob("*") if path.is_file() and path.name[0] != "_"]
    changed = [path for path in files if ("/data/" in str(path)) is (kind == "data")]
    assert changed
    for path in changed:
        content = bytearray(path.read_bytes())
        content[len(content) // 3] ^= 1
        path.write_bytes(content)

    with pytest.raises(CorruptStateError, match="Nothing was changed"):
        read_savepoint(CheckpointStorage.open, row.location, job.view.job)
