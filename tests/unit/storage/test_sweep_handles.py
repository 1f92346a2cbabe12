"""Which files of state handles a sweep deletes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.layout import handles_uri
from airflow_provider_statecheck.checkpoint.messages import AttemptRef, FinishAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.checkpoint.state_handle_store import HandleRow, LeasedStateHandleStore
from airflow_provider_statecheck.exceptions import StaleAttemptError, StorageError
from airflow_provider_statecheck.storage.completed_checkpoints import StoredStates
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import DocumentCache
from airflow_provider_statecheck.storage.orphans import SweepReport, sweep
from airflow_provider_statecheck.testing.faults import FaultMode, FaultPlan, faulty_storage
from airflow_provider_statecheck.testing.memory_store import InMemoryHandleRows, InMemoryJobStore
from airflow_provider_statecheck.testing.messages import make_registration


class Job:
    """An operator with handles on real files."""

    def __init__(self, folder: Path) -> None:
        jobs = InMemoryJobStore()
        self.coordinator = AttemptCoordinator(jobs)
        self.storage = CheckpointStorage.open(str(folder))
        self.attempt = self.register()
        self.rows = InMemoryHandleRows(jobs, self.attempt.job_id)

    def register(self) -> AttemptRef:
        return self.coordinator.register(make_registration(storage_base=self.storage.base_uri)).attempt

    def end(self) -> None:
        self.coordinator.finish(FinishAttempt(attempt=self.attempt, status=AttemptStatus.FAILED))

    def states(self) -> StoredStates:
        return StoredStates(self.storage, self.attempt)

    def handles(self) -> LeasedStateHandleStore[bytes]:
        return LeasedStateHandleStore(self.rows, self.states(), self.attempt)

    def sweep(self, storage: CheckpointStorage | None = None) -> SweepReport:
        view = self.coordinator.describe(self.attempt.job_id)
        return sweep(storage or self.storage, view, DocumentCache(lambda _: self.storage))

    def files(self) -> set[str]:
        root = handles_uri(self.storage.base_uri, self.attempt.job_id, self.attempt.operator_id)
        return {f"{root}/{name}" for name in self.storage.list_files(root)}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_a_file_that_no_handle_names_goes_when_its_attempt_has_ended(job: Job) -> None:
    orphan, kept = job.states().store(b"lost"), job.handles().add_and_lock("a", b"kept")
    job.end()
    assert job.sweep().deleted == (orphan.uri,)
    assert job.files() == {kept.pointer.uri}
    assert job.sweep().deleted == ()


def test_a_file_of_an_attempt_that_has_not_ended_stays(job: Job) -> None:
    orphan = job.states().store(b"not yet named")
    assert job.sweep().deleted == ()
    assert job.files() == {orphan.uri}


def test_a_file_of_a_fenced_attempt_goes_while_the_next_one_runs(job: Job) -> None:
    orphan = job.states().store(b"lost")
    job.attempt = job.register()
    new = job.states().store(b"not yet named")
    assert job.sweep().deleted == (orphan.uri,)
    assert job.files() == {new.uri}


def test_state_of_a_handle_that_is_being_removed_is_left_to_the_removal(job: Job) -> None:
    pointer = job.states().store(b"1")
    with job.rows.transaction() as tx:
        tx.save(HandleRow(name="a", handle=pointer.encode(), is_deleting=True))
    job.end()
    assert job.sweep().deleted == ()


def test_nothing_goes_where_a_handle_cannot_be_read(job: Job) -> None:
    orphan = job.states().store(b"lost")
    with job.rows.transaction() as tx:
        tx.save(HandleRow(name="a", handle=b"\x80"))
    job.end()
    assert job.sweep().deleted == ()
    assert job.files() == {orphan.uri}


def test_nothing_goes_where_the_server_does_not_tell_which_state_is_in_use(job: Job) -> None:
    job.states().store(b"lost")
    job.end()
    view = replace(job.coordinator.describe(job.attempt.job_id), handle_uris=None)
    assert sweep(job.storage, view, DocumentCache(lambda _: job.storage)).deleted == ()


def test_a_directory_that_is_spelled_otherwise_is_the_same(job: Job) -> None:
    handle = job.handles().add_and_lock("a", b"1")
    spelled = replace(handle.pointer, uri=handle.pointer.uri.replace("file:///", "file:///./"))
    with job.rows.transaction() as tx:
        tx.save(HandleRow(name="a", handle=spelled.encode()))
    job.end()
    assert job.sweep().deleted == ()


def test_a_file_that_nobody_knows_stays(job: Job) -> None:
    job.states().store(b"1")
    root = handles_uri(job.storage.base_uri, job.attempt.job_id, job.attempt.operator_id)
    job.storage.write_bytes(f"{root}/notes", b"by hand")
    job.end()
    job.sweep()
    assert job.files() == {f"{root}/notes"}


def test_an_attempt_that_has_ended_names_nothing_any_more(job: Job) -> None:
    handles = job.handles()
    job.end()
    with pytest.raises(StaleAttemptError):
        handles.add_and_lock("a", b"1")
    assert job.files() == set()


@pytest.mark.parametrize("mode", [FaultMode.ERROR, FaultMode.REPLY_LOST])
def test_a_sweep_that_fails_at_any_call_is_made_good_by_the_next(tmp_path: Path, mode: FaultMode) -> None:
    point, is_done = 0, False
    while not is_done:
        point += 1
        job = Job(tmp_path / str(point))
        job.states().store(b"1")
        job.states().store(b"2")
        kept = job.handles().add_and_lock("a", b"kept")
        job.end()
        plan = FaultPlan(point=point, mode=mode)
        try:
            job.sweep(faulty_storage(job.storage, plan))
        except StorageError:
            job.sweep()
        is_done = len(plan.calls) < point
        assert job.files() == {kept.pointer.uri}
    assert point > 4
