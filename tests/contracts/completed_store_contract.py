"""
The contract of a store of completed checkpoints, as a suite for rows in any database.

Subclass :class:`CompletedCheckpointStoreContract` and give the fixture ``jobs`` (the rows of jobs, over ``clock``). The
bytes are files of the test's folder.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Set as AbstractSet
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.aligned.contents import CompletedCheckpoint
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.messages import AttemptRef, OpenEffects
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, CheckpointRetentionPolicy, JobStatus
from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CommitStateUnknownError,
    CoordinatorError,
    CorruptStateError,
    StaleAttemptError,
    StorageError,
)
from airflow_provider_statecheck.flink.completed_store import CheckpointsCleaner, CompletedCheckpointStore
from airflow_provider_statecheck.flink.state_handles import StateHandleStore, handle_name
from airflow_provider_statecheck.storage.aligned_files import AlignedFiles
from airflow_provider_statecheck.storage.discarding import EffectDiscards, StorageDiscarder
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import DocumentCache
from airflow_provider_statecheck.testing.faults import FaultMode, FaultPlan, InProcessPlan, Killed, faulty_rows
from tests.contracts.written_checkpoints import JOB, SAVEPOINT, UNCLAIMED, OnAlignedRows, WrittenCheckpoints
from tests.messages import ManualClock, make_leadership, present

Store = CompletedCheckpointStore


class _AtOnce(Executor):
    """Runs everything in the calling thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class _Deleting(EffectDiscards):
    """Deletes checkpoints and keeps in which order."""

    def __init__(self, storage: CheckpointStorage) -> None:
        super().__init__(storage, DocumentCache(lambda _: storage))
        self.deleted: list[int] = []

    def discard(self, effects: OpenEffects, pinned: AbstractSet[str] = frozenset()) -> tuple[int, ...]:
        deleted = super().discard(effects, pinned)
        self.deleted += deleted
        return deleted


class CompletedCheckpointStoreContract(OnAlignedRows):
    """What holds for every store of completed checkpoints."""

    @pytest.fixture(autouse=True)
    def _parts(self, jobs: JobStore, rows: AlignedCheckpoints, clock: ManualClock, tmp_path: Path) -> None:
        self.job_rows, self.calls, self.coordinator = jobs, rows, AttemptCoordinator(jobs)
        self.bytes = CheckpointStorage.open(str(tmp_path / "bytes"))
        self.files = WrittenCheckpoints(self.bytes, clock)
        self.written = self.files.write
        self.is_whole = self.files.is_whole
        self.attempt = self.lead()
        self.deleting = _Deleting(self.bytes)
        self.cleaner = self.new_cleaner()

    def new_cleaner(self) -> CheckpointsCleaner:
        """Return another cleaner of the present attempt."""
        discarder = StorageDiscarder(self.bytes, JOB)
        storage = AlignedFiles(self.bytes, JOB, "sales")
        return CheckpointsCleaner(self.calls, self.attempt, storage, self.deleting, discarder, _AtOnce())

    def handles(self, plan: FaultPlan | None = None) -> StateHandleStore:
        """Return another store of handles, whose calls a plan may count."""
        rows: Any = faulty_rows(self.calls, plan or FaultPlan())
        return StateHandleStore(rows, self.attempt, AlignedFiles(self.bytes, JOB, "sales"))

    def opened(self, plan: FaultPlan | None = None, num_retained: int = 1, *, skip_corrupt: bool = False) -> Store:
        """Return another store of the present attempt that has recovered."""
        plan = plan or FaultPlan()
        store = Store(self.handles(plan), num_retained, skip_corrupt=skip_corrupt)
        point, plan.point = plan.point, None
        store.recover()
        plan.point, plan.calls = point, []
        return store

    def add(self, store: Store, *checkpoints: CompletedCheckpoint) -> CompletedCheckpoint | None:
        """Add checkpoints and return what the last of them subsumed."""
        dropped = None
        for checkpoint in checkpoints:
            dropped = store.add_checkpoint_and_subsume_oldest(checkpoint, self.cleaner)
        return dropped

    def filled(self, *checkpoint_ids: int, num_retained: int = 9) -> Store:
        """Return a store that holds new checkpoints."""
        store = self.opened(num_retained=num_retained)
        self.add(store, *(self.written(i) for i in checkpoint_ids))
        return store

    def ids(self, store: Store) -> list[int]:
        return [c.checkpoint_id for c in store.get_all_checkpoints()]

    def names(self) -> list[str]:
        return [name for _, name in self.handles().get_all_and_lock()]

    def shared_exists(self, name: str = "common") -> bool:
        return self.bytes.exists(self.files.shared(name))

    def lead(self) -> AttemptRef:
        return self.calls.lead(make_leadership(storage_base=self.bytes.base_uri))

    def fence(self) -> None:
        self.lead()

    # --- life

    def test_a_store_is_used_between_recover_and_shutdown_only(self) -> None:
        store = Store(self.handles())
        with pytest.raises(CoordinatorError, match="recover"):
            self.add(store, self.written(1))
        with pytest.raises(CoordinatorError, match="recover"):
            store.get_latest_checkpoint()
        with pytest.raises(CoordinatorError, match="recover"):
            store.shutdown(JobStatus.FINISHED, self.cleaner)
        assert self.names() == []

    @pytest.mark.parametrize("status", list(JobStatus))
    def test_after_the_shutdown_nothing_is_added_whatever_the_status_was(self, status: JobStatus) -> None:
        store = self.filled(1)
        store.shutdown(status, self.cleaner)
        before = self.names()
        with pytest.raises(CoordinatorError, match="shut down"):
            self.add(store, self.written(2))
        with pytest.raises(CoordinatorError, match="shut down"):
            store.recover()
        assert (self.names(), store.get_all_checkpoints()) == (before, [])

    def test_an_empty_store_has_no_latest_checkpoint(self) -> None:
        store = self.opened()
        assert (store.get_latest_checkpoint(), store.get_latest_checkpoint_id()) == (None, 0)
        assert (store.get_all_checkpoints(), store.get_number_of_retained()) == ([], 0)

    def test_the_latest_is_the_one_with_the_largest_id(self) -> None:
        store = self.filled(9, 10)
        latest = present(store.get_latest_checkpoint())
        assert (latest.checkpoint_id, store.get_latest_checkpoint_id(), store.get_number_of_retained()) == (10, 10, 2)

    def test_what_is_given_out_is_a_copy(self) -> None:
        store = self.filled(1)
        store.get_all_checkpoints().clear()
        assert self.ids(store) == [1]

    @pytest.mark.parametrize("number", [0, -1])
    def test_a_number_to_retain_below_one_is_taken_for_two(self, number: int, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING):
            store = Store(self.handles(), number)
        assert store.get_max_number_of_retained() == 2
        assert "at least 1" in caplog.text
        assert Store(self.handles()).get_max_number_of_retained() == 2

    # --- add

    def test_a_fenced_store_adds_and_drops_nothing(self) -> None:
        store = self.filled(1, num_retained=1)
        self.fence()
        with pytest.raises(StaleAttemptError):
            self.add(store, self.written(2))
        assert (self.ids(store), self.names(), self.deleting.deleted) == ([1], [handle_name(1)], [])

    def test_a_checkpoint_comes_back_whole(self) -> None:
        checkpoint = replace(self.written(7, properties=SAVEPOINT), properties=UNCLAIMED)
        self.add(self.opened(), checkpoint)
        (found,) = self.opened().get_all_checkpoints()
        for name in CompletedCheckpoint.__slots__:
            assert getattr(found, name) == getattr(checkpoint, name)

    @pytest.mark.parametrize("mode", [FaultMode.ERROR, FaultMode.REPLY_LOST])
    def test_where_the_outcome_of_adding_is_unknown_nothing_is_dropped_or_deleted(self, mode: FaultMode) -> None:
        first, second = self.written(1), self.written(2)
        self.add(self.opened(), first)
        store = self.opened(FaultPlan(point=1, mode=mode, times=2))
        with pytest.raises(CommitStateUnknownError):
            self.add(store, second)
        assert (self.ids(store), self.deleting.deleted) == ([1], [])
        assert self.is_whole(first)
        assert self.is_whole(second)

    def test_a_savepoint_is_completed_and_neither_retained_nor_restored(self) -> None:
        store = self.filled(1, num_retained=1)
        assert self.add(store, self.written(2, properties=SAVEPOINT)) is None
        row = present(self.job_rows.checkpoint(JOB, 2))
        assert row.completed_at is not None
        assert (self.ids(store), self.ids(self.opened())) == ([1], [1])

    # --- subsume

    def test_an_error_in_subsuming_is_logged_and_tried_again_with_the_next(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        self.filled(1)
        store = self.opened(FaultPlan(point=2, times=2))
        assert self.add(store, self.written(2)) is None
        assert "could not be dropped" in caplog.text
        assert self.ids(store) == [1, 2]
        self.add(store, self.written(3))
        assert (self.ids(store), self.names()) == ([3], [handle_name(3)])

    def test_a_new_checkpoint_subsumes_the_oldest(self) -> None:
        store = self.filled(1, 2, 3, num_retained=3)
        dropped = present(self.add(store, self.written(4)))
        assert dropped.checkpoint_id == 1
        assert (self.ids(store), self.names()) == ([2, 3, 4], [handle_name(i) for i in (2, 3, 4)])

    def test_of_several_that_are_subsumed_the_newest_is_returned(self) -> None:
        self.filled(1, 2, 3)
        store = self.opened(num_retained=1)
        dropped = present(self.add(store, self.written(4)))
        assert (dropped.checkpoint_id, self.ids(store)) == (3, [4])

    def test_the_bytes_of_a_subsumed_checkpoint_go_and_shared_ones_that_are_used_stay(self) -> None:
        first, second = self.written(1, ("old", "common")), self.written(2)
        store = self.opened()
        self.add(store, first, second)
        assert not self.bytes.exists(first.metadata.uri)
        assert not self.bytes.is_directory(first.external_pointer)
        assert (self.shared_exists("old"), self.shared_exists("common"), self.is_whole(second)) == (False, True, True)

    def test_what_is_to_stay_when_subsumed_keeps_its_bytes(self) -> None:
        store = self.opened()
        unclaimed = self.written(1, properties=UNCLAIMED)
        self.add(store, unclaimed, self.written(2))
        assert (self.ids(store), self.is_whole(unclaimed)) == ([2], True)

    def test_the_row_goes_before_the_bytes(self) -> None:
        store = self.filled(1, num_retained=1)
        rows: list[list[str]] = []

        def discard(*_: Any) -> tuple[int, ...]:
            rows.append(self.names())
            return ()

        self.deleting.discard = discard  # type: ignore[method-assign, assignment]
        self.add(store, self.written(2))
        assert rows == [[handle_name(2)]]

    def test_an_error_in_cleaning_is_logged_and_not_raised(self, caplog: pytest.LogCaptureFixture) -> None:
        store = self.filled(1, num_retained=1)
        self.cleaner.close()
        assert self.add(store, self.written(2)) is not None
        assert "could not be cleaned" in caplog.text
        assert self.ids(store) == [2]

    # --- recover

    def test_checkpoints_are_recovered_oldest_first(self) -> None:
        self.filled(10, 9, 100)
        assert self.ids(self.opened()) == [9, 10, 100]

    def corrupt_metadata(self, checkpoint: CompletedCheckpoint) -> None:
        self.bytes.write_bytes(checkpoint.metadata.uri, b"none", overwrite=True)

    def lose_metadata(self, checkpoint: CompletedCheckpoint) -> None:
        self.bytes.delete_file(checkpoint.metadata.uri)

    @pytest.mark.parametrize("damage", ["corrupt_metadata", "lose_metadata"])
    def test_one_checkpoint_that_cannot_be_read_fails_the_recovery(self, damage: str) -> None:
        store = self.filled(1, 2)
        getattr(self, damage)(store.get_all_checkpoints()[1])
        with pytest.raises((CorruptStateError, CheckpointNotFoundError), match="skip_corrupt"):
            self.opened()
        assert (self.names(), self.deleting.deleted) == ([handle_name(1), handle_name(2)], [])

    @pytest.mark.parametrize("damage", ["corrupt_metadata", "lose_metadata"])
    def test_what_cannot_be_read_is_left_out_where_that_was_asked_for(
        self, damage: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = self.filled(1, 2)
        getattr(self, damage)(store.get_all_checkpoints()[1])
        assert self.ids(self.opened(skip_corrupt=True)) == [1]
        assert handle_name(2) in caplog.text
        assert self.names() == [handle_name(1), handle_name(2)]

    def test_a_storage_that_does_not_answer_fails_the_recovery_whatever_was_asked_for(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.filled(1)

        def fail(*_: object, **__: object) -> bytes:
            raise StorageError("no answer")

        monkeypatch.setattr(self.bytes, "read_verified", fail)
        with pytest.raises(StorageError, match="no answer"):
            self.opened(skip_corrupt=True)

    def test_recovering_again_sees_what_another_store_added_and_dropped(self) -> None:
        one = self.filled(1, num_retained=1)
        other = self.opened(num_retained=1)
        self.add(one, self.written(2))
        assert self.ids(other) == [1]
        other.recover()
        assert self.ids(other) == [2]

    # --- shutdown

    @pytest.mark.parametrize("status", [s for s in JobStatus if s.is_globally_terminal])
    @pytest.mark.parametrize("policy", list(CheckpointRetentionPolicy))
    def test_where_the_job_is_over_each_checkpoint_goes_or_stays_as_its_properties_say(
        self, status: JobStatus, policy: CheckpointRetentionPolicy
    ) -> None:
        properties = CheckpointProperties.for_checkpoint(policy)
        checkpoints = [self.written(i, properties=properties) for i in (1, 2)]
        store = self.opened(num_retained=2)
        self.add(store, *checkpoints)
        store.shutdown(status, self.cleaner)
        stays = not properties.discard_on(status)
        assert [self.is_whole(c) for c in checkpoints] == [stays, stays]
        assert (self.shared_exists(), self.names(), store.get_all_checkpoints()) == (stays, [], [])

    def test_where_the_job_is_over_what_another_store_added_goes_too(self) -> None:
        one = self.filled(1)
        second = self.written(2)
        self.add(self.opened(num_retained=9), second)
        one.shutdown(JobStatus.FINISHED, self.cleaner)
        assert (self.names(), self.bytes.exists(second.metadata.uri)) == ([], False)

    def test_where_the_job_is_over_the_oldest_goes_first(self) -> None:
        store = self.filled(1, 2, 3)
        store.shutdown(JobStatus.FINISHED, self.cleaner)
        assert self.deleting.deleted == [1, 2, 3]

    def test_what_stays_after_the_end_is_named_in_the_log(self, caplog: pytest.LogCaptureFixture) -> None:
        store = self.opened()
        checkpoint = self.written(1, properties=UNCLAIMED)
        self.add(store, checkpoint)
        with caplog.at_level(logging.INFO):
            store.shutdown(JobStatus.FINISHED, self.cleaner)
        assert checkpoint.external_pointer in caplog.text

    def test_files_shared_with_what_stays_stay_too(self) -> None:
        keeping, going = self.written(1, ("common",), properties=UNCLAIMED), self.written(2, ("common", "new"))
        store = self.opened(num_retained=2)
        self.add(store, keeping, going)
        store.shutdown(JobStatus.FINISHED, self.cleaner)
        assert (self.is_whole(keeping), self.bytes.exists(going.metadata.uri)) == (True, False)

    def test_where_the_job_goes_on_everything_stays_for_the_next_store(self) -> None:
        store = self.filled(1, 2)
        store.shutdown(JobStatus.SUSPENDED, self.cleaner)
        assert (store.get_all_checkpoints(), self.deleting.deleted) == ([], [])
        found = self.opened()
        assert [self.is_whole(c) for c in found.get_all_checkpoints()] == [True, True]

    @pytest.mark.parametrize("status", [JobStatus.FINISHED, JobStatus.SUSPENDED])
    def test_a_shutdown_may_be_repeated(self, status: JobStatus) -> None:
        store = self.filled(1)
        store.shutdown(status, self.cleaner)
        before = (self.names(), list(self.deleting.deleted))
        store.shutdown(JobStatus.FINISHED, self.cleaner)
        assert (self.names(), self.deleting.deleted) == before

    def test_a_shutdown_that_failed_goes_on_when_it_is_repeated(self) -> None:
        keeping = self.written(1, properties=UNCLAIMED)
        self.add(self.opened(num_retained=3), keeping, self.written(2), self.written(3))
        store = self.opened(FaultPlan(point=1, times=2), num_retained=3)
        with pytest.raises(CommitStateUnknownError):
            store.shutdown(JobStatus.FINISHED, self.cleaner)
        assert self.names() == [handle_name(1), handle_name(2), handle_name(3)]
        store.shutdown(JobStatus.FINISHED, self.cleaner)
        assert (self.names(), store.get_all_checkpoints(), self.is_whole(keeping)) == ([], [], True)

    def test_a_fenced_store_forgets_nothing(self) -> None:
        store = self.filled(1)
        (checkpoint,) = store.get_all_checkpoints()
        self.fence()
        with pytest.raises(StaleAttemptError):
            store.shutdown(JobStatus.FINISHED, self.cleaner)
        assert (self.names(), self.is_whole(checkpoint)) == ([handle_name(1)], True)

    # --- crashes

    @pytest.mark.parametrize("mode", [FaultMode.KILL, FaultMode.KILL_AFTER])
    @pytest.mark.parametrize("point", range(1, 3))
    def test_a_crash_while_adding_leaves_no_handle_without_its_bytes(self, point: int, mode: FaultMode) -> None:
        self.filled(1)
        second = self.written(2)
        store = self.opened(InProcessPlan(point=point, mode=mode))
        with pytest.raises(Killed):
            self.add(store, second)
        found = self.opened()
        assert found.get_number_of_retained() >= 1
        assert all(self.is_whole(checkpoint) for checkpoint in found.get_all_checkpoints())
        self.add(found, second)
        assert (self.ids(found), self.names(), self.is_whole(second)) == ([2], [handle_name(2)], True)

    @pytest.mark.parametrize("mode", [FaultMode.KILL, FaultMode.KILL_AFTER])
    @pytest.mark.parametrize("point", [1])
    def test_a_crash_in_the_shutdown_leaves_no_handle_without_its_bytes(self, point: int, mode: FaultMode) -> None:
        self.filled(1, 2)
        store = self.opened(InProcessPlan(point=point, mode=mode), num_retained=2)
        with pytest.raises(Killed):
            store.shutdown(JobStatus.FINISHED, self.cleaner)
        found = self.opened(num_retained=2)
        assert all(self.is_whole(checkpoint) for checkpoint in found.get_all_checkpoints())
        found.shutdown(JobStatus.FINISHED, self.cleaner)
        assert (self.names(), found.get_all_checkpoints()) == ([], [])
