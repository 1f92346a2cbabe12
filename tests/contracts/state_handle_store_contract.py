"""
The contracts of a store of state handles and of a counter of checkpoint ids, as suites for rows in any database.

Subclass :class:`StateHandleStoreContract` or :class:`CheckpointIDCounterContract` and give the fixture ``jobs`` (the
rows of jobs, over ``clock``).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.aligned.contents import CompletedCheckpoint
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of, new_key
from airflow_provider_statecheck.checkpoint.messages import AttemptRef, ConfirmRestore, FinishAttempt
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, JobStatus
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointRecord, CheckpointStatus
from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CoordinatorError,
    CorruptStateError,
    HandleExistsError,
    HandleNotFoundError,
    InvalidConfigurationError,
    ResourceVersionError,
    StaleAttemptError,
)
from airflow_provider_statecheck.flink.state_handles import (
    CheckpointIDCounter,
    ResourceVersion,
    StateHandleStore,
    handle_name,
)
from airflow_provider_statecheck.storage.aligned_files import AlignedFiles
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.testing.faults import FaultMode, FaultPlan, faulty_rows
from tests.contracts.written_checkpoints import (
    JOB,
    SAVEPOINT,
    UNCLAIMED,
    OnAlignedRows,
    WrittenCheckpoints,
    with_other_metadata,
)
from tests.messages import ManualClock, complete_checkpoint, make_leadership, make_registration, present

ONE, TWO = handle_name(1), handle_name(2)
CLAIMED = CheckpointProperties.for_checkpoint()
THREADS = 4
DRAWS = 10


class StateHandleStoreContract(OnAlignedRows):
    """What holds for every store of state handles."""

    @pytest.fixture(autouse=True)
    def _stores(self, jobs: JobStore, rows: AlignedCheckpoints, clock: ManualClock, tmp_path: Path) -> None:
        self.job_rows, self.calls, self.coordinator = jobs, rows, AttemptCoordinator(jobs)
        self.storage = CheckpointStorage.open(str(tmp_path / "bytes"))
        self.written = WrittenCheckpoints(self.storage, clock)
        self.attempt = self.lead()
        self.epoch = ResourceVersion(self.attempt.epoch)
        self.handles = self.open()

    def open(self, plan: FaultPlan | None = None) -> StateHandleStore:
        """Return another store of the present attempt, whose calls a plan may count."""
        rows: Any = faulty_rows(self.calls, plan or FaultPlan())
        return StateHandleStore(rows, self.attempt, AlignedFiles(self.storage, JOB, "sales"))

    def failing(self, mode: FaultMode, times: int = 1) -> StateHandleStore:
        """Return a store whose first calls fail."""
        return self.open(FaultPlan(point=1, mode=mode, times=times))

    def added(self, checkpoint_id: int = 1, **changes: Any) -> CompletedCheckpoint:
        """Write a checkpoint, add its handle and return it."""
        checkpoint = self.written.write(checkpoint_id, **changes)
        self.handles.add_and_lock(handle_name(checkpoint_id), checkpoint)
        return checkpoint

    def row(self, checkpoint_id: int = 1) -> CheckpointRecord:
        return present(self.job_rows.checkpoint(JOB, checkpoint_id))

    def begin(self, checkpoint: CompletedCheckpoint, status: CheckpointStatus = CheckpointStatus.FINALIZING) -> None:
        """Add the row of a checkpoint that is not complete."""
        with self.job_rows.transaction(JOB) as tx:
            tx.add_checkpoint(
                CheckpointRecord(
                    job_id=JOB,
                    checkpoint_id=checkpoint.checkpoint_id,
                    operator_id=self.attempt.operator_id,
                    epoch=self.attempt.epoch,
                    generation=1,
                    status=status,
                    request_key=new_key(),
                    location=checkpoint.external_pointer,
                    triggered_at=tx.now,
                    expires_at=tx.now,
                )
            )

    def live(self) -> list[str]:
        return [name for _, name in self.open().get_all_and_lock()]

    def lead(self) -> AttemptRef:
        return self.calls.lead(make_leadership(storage_base=self.storage.base_uri))

    def fence(self) -> None:
        self.lead()

    # --- versions and handles

    def test_versions_are_ordered_and_not_existing_comes_first(self) -> None:
        assert ResourceVersion.not_existing() < ResourceVersion(0) < ResourceVersion(1)
        assert not ResourceVersion.not_existing().is_existing
        with pytest.raises(TypeError):
            assert ResourceVersion(0) < 1  # type: ignore[operator]

    def test_a_handle_gives_its_checkpoint_and_size_and_discards_twice(self) -> None:
        checkpoint = self.added()
        handle = self.handles.get_and_lock(ONE)
        assert (handle.retrieve_state(), handle.get_state_size()) == (checkpoint, checkpoint.metadata.size)
        assert handle.retrieve_state().operator_states == checkpoint.operator_states
        handle.discard_state()
        handle.discard_state()
        with pytest.raises(CheckpointNotFoundError):
            self.open().get_and_lock(ONE).retrieve_state()

    def test_changed_metadata_is_not_taken_for_the_checkpoint(self) -> None:
        self.storage.write_bytes(self.added().metadata.uri, b"none", overwrite=True)
        with pytest.raises(CorruptStateError):
            self.open().get_and_lock(ONE).retrieve_state()

    @pytest.mark.parametrize("name", [None, "", "a", "chk-1", f"{TWO}0", TWO])
    def test_a_name_of_no_or_another_checkpoint_is_refused(self, name: Any) -> None:
        checkpoint = self.written.write(1)
        with pytest.raises(InvalidConfigurationError):
            self.handles.add_and_lock(name, checkpoint)
        with pytest.raises(InvalidConfigurationError):
            self.handles.replace(name, self.epoch, checkpoint)
        assert self.live() == []

    def test_no_checkpoint_is_refused(self) -> None:
        with pytest.raises(InvalidConfigurationError):
            self.handles.add_and_lock(ONE, None)  # type: ignore[arg-type]

    # --- add

    def test_add_completes_the_row_of_the_checkpoint(self) -> None:
        checkpoint = self.written.write(1)
        self.begin(checkpoint)
        self.handles.add_and_lock(ONE, checkpoint)
        row = self.row()
        assert (row.status, row.completed_at) == (CheckpointStatus.COMPLETED, checkpoint.completed_at)
        assert (row.metadata_uri, row.metadata_sha256) == (checkpoint.metadata.uri, checkpoint.metadata.sha256)
        assert (row.full_size_bytes, row.state_size_bytes, row.counts) == (checkpoint.state_size, 5, {"operators": 1})
        assert self.handles.exists(ONE) == self.epoch

    def test_add_of_a_restored_checkpoint_adds_a_row(self) -> None:
        self.added(7, properties=UNCLAIMED)
        assert (self.row(7).status, self.row(7).properties) == (CheckpointStatus.COMPLETED, UNCLAIMED)

    def test_add_of_a_foreign_directory_that_the_job_would_delete_is_refused(self) -> None:
        checkpoint = self.written.write(1)
        with pytest.raises(InvalidConfigurationError, match="has claimed"):
            self.handles.add_and_lock(TWO, replace(checkpoint, checkpoint_id=2))
        foreign = replace(checkpoint, metadata=replace(checkpoint.metadata, uri=f"{self.storage.base_uri}/_metadata"))
        with pytest.raises(InvalidConfigurationError, match="metadata_uri"):
            self.handles.add_and_lock(ONE, foreign)
        assert self.live() == []

    def test_add_that_finds_its_own_handle_changes_nothing(self) -> None:
        checkpoint = self.added()
        before = self.row()
        assert self.open().add_and_lock(ONE, checkpoint).record == before == self.row()

    def test_add_of_another_checkpoint_under_a_name_is_refused(self) -> None:
        checkpoint = self.added()
        with pytest.raises(HandleExistsError):
            self.handles.add_and_lock(ONE, with_other_metadata(checkpoint))
        assert self.row().metadata_sha256 == checkpoint.metadata.sha256

    @pytest.mark.parametrize("status", [CheckpointStatus.PENDING, CheckpointStatus.ABORTED])
    def test_add_of_a_checkpoint_that_is_not_acknowledged_is_refused(self, status: CheckpointStatus) -> None:
        checkpoint = self.written.write(1)
        self.begin(checkpoint, status)
        with pytest.raises(HandleExistsError, match=status.value):
            self.handles.add_and_lock(ONE, checkpoint)
        assert (self.row().status, self.written.is_whole(checkpoint)) == (status, True)

    def test_a_name_is_never_used_again(self) -> None:
        checkpoint = self.added()
        self.handles.release_and_try_remove(ONE)
        with pytest.raises(HandleExistsError):
            self.handles.add_and_lock(ONE, checkpoint)

    @pytest.mark.parametrize("mode", [FaultMode.ERROR, FaultMode.REPLY_LOST])
    def test_add_of_unknown_outcome_is_repeated_once(self, mode: FaultMode) -> None:
        self.failing(mode).add_and_lock(ONE, self.written.write(1))
        assert self.live() == [ONE]

    def test_of_many_adds_at_once_one_succeeds(self) -> None:
        checkpoint = self.written.write(1)
        others = [with_other_metadata(checkpoint, f"{n:064}") for n in range(4)]

        def add(other: CompletedCheckpoint) -> bool:
            try:
                self.open().add_and_lock(ONE, other)
            except HandleExistsError:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(add, others)) == 1

    def test_a_fenced_or_ended_attempt_adds_nothing(self) -> None:
        self.fence()
        with pytest.raises(StaleAttemptError):
            self.handles.add_and_lock(ONE, self.written.write(1))
        self.attempt = self.lead()
        self.coordinator.finish(FinishAttempt(attempt=self.attempt, status=AttemptStatus.FINISHED))
        with pytest.raises(StaleAttemptError):
            self.open().add_and_lock(ONE, self.written.write(1))
        assert self.job_rows.checkpoint(JOB, 1) is None

    # --- replace

    def test_replace_changes_the_owner(self) -> None:
        checkpoint = self.added(properties=UNCLAIMED)
        self.handles.replace(ONE, self.epoch, replace(checkpoint, properties=CLAIMED))
        assert (self.row().properties, self.handles.exists(ONE)) == (CLAIMED, self.epoch)

    def test_replace_of_a_missing_or_removed_name_is_refused(self) -> None:
        checkpoint = self.written.write(1)
        with pytest.raises(HandleNotFoundError):
            self.handles.replace(ONE, self.epoch, checkpoint)
        self.handles.add_and_lock(ONE, checkpoint)
        self.handles.release_and_try_remove(ONE)
        with pytest.raises(HandleNotFoundError):
            self.handles.replace(ONE, self.epoch, checkpoint)
        with pytest.raises(HandleNotFoundError, match="found that of none"):
            self.handles.replace(ONE, self.handles.exists(ONE), checkpoint)

    def test_replace_of_another_version_or_by_other_metadata_changes_nothing(self) -> None:
        checkpoint = self.added()
        before = self.row()
        with pytest.raises(ResourceVersionError):
            self.handles.replace(ONE, ResourceVersion(self.epoch.value + 1), replace(checkpoint, properties=CLAIMED))
        with pytest.raises(HandleExistsError):
            self.handles.replace(ONE, self.epoch, with_other_metadata(checkpoint))
        assert self.row() == before

    def test_replace_whose_reply_was_lost_is_success(self) -> None:
        checkpoint = self.added(properties=UNCLAIMED)
        self.failing(FaultMode.REPLY_LOST).replace(ONE, self.epoch, replace(checkpoint, properties=CLAIMED))
        assert self.row().properties == CLAIMED

    def test_replace_by_a_fenced_attempt_changes_nothing(self) -> None:
        checkpoint = self.added(properties=UNCLAIMED)
        self.fence()
        with pytest.raises(StaleAttemptError):
            self.handles.replace(ONE, self.epoch, replace(checkpoint, properties=CLAIMED))
        assert self.row().properties == UNCLAIMED

    # --- exists, get, list

    def test_neither_missing_nor_removed_handles_exist(self) -> None:
        self.added()
        self.handles.release_and_try_remove(ONE)
        for name in (ONE, TWO):
            assert self.handles.exists(name) == ResourceVersion.not_existing()
            with pytest.raises(HandleNotFoundError):
                self.handles.get_and_lock(name)

    def test_all_handles_come_oldest_first_without_savepoints(self) -> None:
        for checkpoint_id in (10, 9, 100):
            self.added(checkpoint_id)
        self.added(50, properties=SAVEPOINT)
        assert self.live() == [handle_name(i) for i in (9, 10, 100)] == sorted(self.live())

    def test_a_removed_handle_is_listed_until_its_files_are_deleted(self) -> None:
        self.added()
        self.added(2)
        self.handles.release_and_try_remove(ONE)
        assert (self.handles.get_all_handles(), self.live()) == ([ONE, TWO], [TWO])
        self.coordinator.confirm_discards(self.attempt, (1,))
        assert self.handles.get_all_handles() == [TWO]

    # --- remove and clear

    def test_remove_marks_the_row_and_leaves_the_files_to_their_deleter(self) -> None:
        checkpoint = self.added()
        assert self.handles.release_and_try_remove(ONE)
        assert self.handles.release_and_try_remove(ONE)
        assert (self.row().status, self.row().awaits_discard) == (CheckpointStatus.SUBSUMED, True)
        assert self.written.is_whole(checkpoint)

    def test_remove_of_a_name_that_never_was_is_success(self) -> None:
        assert self.handles.release_and_try_remove(ONE)

    def test_remove_whose_reply_was_lost_is_success(self) -> None:
        self.added()
        assert self.failing(FaultMode.REPLY_LOST).release_and_try_remove(ONE)
        assert self.live() == []

    def test_remove_by_a_fenced_attempt_changes_nothing(self) -> None:
        self.added()
        self.fence()
        assert not self.handles.release_and_try_remove(ONE)
        assert self.row().status is CheckpointStatus.COMPLETED

    def test_clear_removes_handles_and_leaves_their_files_to_the_user(self) -> None:
        checkpoint = self.added()
        self.handles.clear_entries()
        self.handles.clear_entries()
        assert (self.live(), self.row().properties.discard_on_subsumed) == ([], False)
        assert self.written.is_whole(checkpoint)

    def test_the_leader_goes_on_in_the_generation_after_the_end(self) -> None:
        self.added()
        self.handles.clear_entries(JobStatus.FAILED)
        self.added(2)
        self.attempt = self.lead()
        assert self.live() == [TWO]

    @pytest.mark.parametrize("status", [s for s in JobStatus if s.is_globally_terminal])
    def test_the_end_of_the_job_leaves_to_the_user_what_its_properties_say(self, status: JobStatus) -> None:
        self.added(1, properties=CLAIMED)
        self.added(2, properties=UNCLAIMED)
        kept = [record.checkpoint_id for record in self.handles.clear_entries(status)]
        assert kept == ([2] if CLAIMED.discard_on(status) else [1, 2])
        assert (self.live(), self.row(1).awaits_discard) == ([], CLAIMED.discard_on(status))

    def test_the_end_of_the_job_releases_what_the_leader_restored(self) -> None:
        self.added()
        self.coordinator.confirm_restore(ConfirmRestore(attempt=self.attempt, checkpoint_id=1))
        self.handles.clear_entries(JobStatus.FINISHED)
        [attempt] = self.job_rows.describe(JOB).attempts
        assert attempt.restored_from is None

    def test_clear_by_a_fenced_attempt_is_refused(self) -> None:
        self.added()
        self.fence()
        with pytest.raises(StaleAttemptError):
            self.handles.clear_entries()
        assert self.live() == [ONE]

    def test_a_release_has_no_effect(self) -> None:
        self.added()
        self.handles.release(ONE)
        self.handles.release_all()
        assert self.live() == [ONE]


class CheckpointIDCounterContract(OnAlignedRows):
    """What holds for every counter of checkpoint ids."""

    @pytest.fixture(autouse=True)
    def _counters(self, jobs: JobStore, rows: AlignedCheckpoints) -> None:
        self.calls = rows
        self.coordinator = AttemptCoordinator(jobs)
        self.leader = rows.lead(make_leadership())

    def new(self, job_id: JobId = JOB) -> CheckpointIDCounter:
        """Return another counter, not started."""
        return CheckpointIDCounter(self.calls, replace(self.leader, job_id=job_id))

    def started(self) -> CheckpointIDCounter:
        """Return another counter of the job, in use."""
        counter = self.new()
        counter.start()
        return counter

    def test_the_first_id_is_one_and_each_is_one_more(self) -> None:
        counter = self.started()
        assert [counter.get_and_increment() for _ in range(3)] == [1, 2, 3]

    def test_get_tells_the_next_id_and_draws_none(self) -> None:
        counter = self.started()
        assert (counter.get(), counter.get(), counter.get_and_increment(), counter.get()) == (1, 1, 1, 2)

    def test_starting_twice_is_starting_once(self) -> None:
        counter = self.started()
        counter.get_and_increment()
        counter.start()
        assert counter.get() == 2

    def test_a_counter_of_a_job_that_never_was_does_not_start(self) -> None:
        counter = self.new(job_id_of("another"))
        with pytest.raises(CheckpointNotFoundError):
            counter.start()
        with pytest.raises(CoordinatorError):
            counter.get()

    def test_a_counter_is_used_between_start_and_shutdown_only(self) -> None:
        counter = self.new()
        calls = (counter.get_and_increment, counter.get, lambda: counter.set_count(5))
        for call in calls:
            with pytest.raises(CoordinatorError, match="start"):
                call()
        counter.start()
        counter.shutdown(JobStatus.SUSPENDED)
        counter.shutdown(JobStatus.SUSPENDED)
        for call in (*calls, counter.start):
            with pytest.raises(CoordinatorError, match="shut down"):
                call()
        assert self.started().get() == 1

    @pytest.mark.parametrize("status", list(JobStatus))
    def test_the_count_outlives_every_end_of_the_job(self, status: JobStatus) -> None:
        counter = self.started()
        counter.get_and_increment()
        counter.shutdown(status)
        assert self.started().get_and_increment() == 2

    def test_the_count_is_raised_at_any_time(self) -> None:
        counter = self.started()
        counter.set_count(5)
        assert counter.get_and_increment() == 5
        counter.set_count(9)
        counter.set_count(9)
        assert counter.get_and_increment() == 9

    def test_a_lower_count_before_the_first_id_gives_no_id_twice(self) -> None:
        self.started().get_and_increment()
        counter = self.started()
        counter.set_count(1)
        assert counter.get_and_increment() == 2

    def test_a_lower_count_after_the_first_id_is_refused(self) -> None:
        counter = self.started()
        counter.get_and_increment()
        with pytest.raises(CoordinatorError, match="before the first trigger"):
            counter.set_count(1)
        assert counter.get() == 2

    @pytest.mark.parametrize("count", [0, -1])
    def test_a_count_below_one_is_refused(self, count: int) -> None:
        with pytest.raises(InvalidConfigurationError):
            self.started().set_count(count)

    def test_a_count_and_the_checkpoints_of_a_job_are_one(self) -> None:
        counter = self.started()
        counter.get_and_increment()
        attempt = self.coordinator.register(make_registration()).attempt
        checkpoint = present(complete_checkpoint(self.coordinator, attempt).checkpoint)
        assert checkpoint.checkpoint_id == 2
        assert counter.get_and_increment() == 3

    def test_a_fenced_leader_draws_no_id(self) -> None:
        counter = self.started()
        self.leader = self.calls.lead(make_leadership())
        with pytest.raises(StaleAttemptError):
            counter.get_and_increment()
        assert self.started().get() == 1

    def test_many_threads_draw_every_id_once(self) -> None:
        counters = [self.started() for _ in range(THREADS)]

        def draw(counter: CheckpointIDCounter) -> list[int]:
            return [counter.get_and_increment() for _ in range(DRAWS)]

        with ThreadPoolExecutor(THREADS) as threads:
            drawn = list(threads.map(draw, counters))
        assert all(ids == sorted(ids) for ids in drawn)
        assert sorted(chain.from_iterable(drawn)) == list(range(1, THREADS * DRAWS + 1))
