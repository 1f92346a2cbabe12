"""Which checkpoints are subsumed, and the deletion of their bytes."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.messages import OpenEffects
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.retention import beyond_retention
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle, StreamStateHandle
from airflow_provider_statecheck.exceptions import (
    CoordinatorError,
    InvalidConfigurationError,
    StaleAttemptError,
    StorageError,
)
from airflow_provider_statecheck.flink.completed_store import CheckpointsCleaner
from airflow_provider_statecheck.flink.coordinator import CheckpointCoordinator
from airflow_provider_statecheck.storage.aligned_files import AlignedFiles
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.aligned_job import CHECKPOINT, AlignedJob, HeldExecutor, InlineExecutor
from tests.messages import ManualClock, complete_checkpoint, make_registration
from tests.sqlite_rows import new_store
from tests.unit.checkpoint.completed_rows import completed


class Deleting:
    """A deleter and discarder that notes what it was asked for, and fails where it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []
        self.discarded: list[str] = []
        self.pinned: list[AbstractSet[str]] = []
        self.retained: list[set[int]] = []
        self.failing = False

    def discard(self, effects: OpenEffects, pinned: AbstractSet[str] = frozenset()) -> tuple[int, ...]:
        ids = tuple(c.checkpoint_id for c in effects.discards)
        self.asked.append(ids)
        self.pinned.append(pinned)
        self.retained.append({c.checkpoint_id for c in effects.retained})
        if self.failing:
            raise StorageError("injected")
        return ids

    def discard_state(self, handle: StreamStateHandle) -> None:
        assert isinstance(handle, FileStateHandle)
        self.discarded.append(handle.uri)


class Job:
    """An operator that retains one checkpoint, and its cleaners."""

    def __init__(self, folder: Path) -> None:
        self.rows = new_store(ManualClock())
        self.coordinator = AttemptCoordinator(self.rows)
        self.attempt = self.coordinator.register(make_registration(num_retained=1)).attempt
        self.storage = AlignedFiles(CheckpointStorage.open(str(folder)), self.attempt.job_id, "sales")
        self.deleting = Deleting()

    def complete(self, count: int) -> None:
        for _ in range(count):
            complete_checkpoint(self.coordinator, self.attempt)

    def cleaner(self, executor: Executor | None = None, *, is_parallel: bool = True) -> CheckpointsCleaner:
        return CheckpointsCleaner(
            AlignedCheckpoints(self.rows),
            self.attempt,
            self.storage,
            self.deleting,
            self.deleting,
            executor or InlineExecutor(),
            is_parallel=is_parallel,
        )

    def row(self, checkpoint_id: int) -> CheckpointRecord:
        found = self.rows.checkpoint(self.attempt.job_id, checkpoint_id)
        assert found is not None
        return found


@pytest.fixture
def stage(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.mark.parametrize(("is_parallel", "asked"), [(True, [(1,), (2,)]), (False, [(1, 2)])])
def test_ended_checkpoints_are_deleted_and_their_rows_say_so(stage: Job, is_parallel: bool, asked: Any) -> None:
    stage.complete(3)
    stage.cleaner(is_parallel=is_parallel).clean()
    assert stage.deleting.asked == asked
    assert [stage.row(i).discarded_at is not None for i in (1, 2, 3)] == [True, True, False]


def test_a_deletion_that_fails_is_repeated_by_the_next_cleaning(stage: Job, caplog: pytest.LogCaptureFixture) -> None:
    stage.complete(2)
    stage.deleting.failing = True
    followed: list[int] = []
    stage.cleaner().clean(lambda: followed.append(1))
    assert (stage.row(1).discarded_at, followed) == (None, [1])
    assert "the next one repeats it" in caplog.text
    stage.deleting.failing = False
    stage.cleaner().clean()
    assert stage.row(1).discarded_at is not None


def test_without_ended_checkpoints_nothing_is_started(stage: Job) -> None:
    stage.complete(1)
    executor = HeldExecutor()
    stage.cleaner(executor).clean()
    assert executor.held == []


def test_a_fenced_leader_deletes_and_records_nothing(stage: Job) -> None:
    stage.complete(2)
    executor = HeldExecutor()
    cleaner = stage.cleaner(executor)
    cleaner.clean()
    stage.coordinator.register(make_registration(num_retained=1))
    executor.run_all()
    assert (stage.deleting.asked, stage.row(1).discarded_at) == ([], None)
    with pytest.raises(StaleAttemptError):
        cleaner.clean()


def test_cleanings_in_progress_are_counted(stage: Job) -> None:
    stage.complete(3)
    executor = HeldExecutor()
    cleaner = stage.cleaner(executor)
    counts: list[int] = []
    cleaner.clean(lambda: counts.append(cleaner.cleanings))
    assert cleaner.cleanings == 2
    executor.run_all()
    assert counts == [1, 0]


def test_what_follows_a_cleaning_may_fail_or_ask_for_another(stage: Job, caplog: pytest.LogCaptureFixture) -> None:
    stage.complete(2)
    cleaner = stage.cleaner()

    def follow() -> None:
        cleaner.clean()
        raise ValueError("not my day")

    cleaner.clean(follow)
    assert cleaner.cleanings == 0
    assert "not my day" in caplog.text


def test_state_of_a_rejected_acknowledgement_goes_alone(stage: Job) -> None:
    stage.cleaner().discard_states([FileStateHandle("memory://a", 1), FileStateHandle("memory://b", 1)])
    assert (stage.deleting.discarded, stage.deleting.asked) == (["memory://a", "memory://b"], [])


def test_a_closed_cleaner_waits_and_accepts_nothing(stage: Job) -> None:
    stage.complete(20)
    with ThreadPoolExecutor(1) as executor:
        cleaner = stage.cleaner(executor)
        cleaner.clean()
        assert cleaner.close(timeout_seconds=60)
        assert len(stage.deleting.asked) == 19
        with pytest.raises(CoordinatorError, match="airflow statecheck gc"):
            cleaner.discard_states([])
    stage.complete(1)
    with pytest.raises(CoordinatorError, match="airflow statecheck gc"):
        cleaner.clean()


def test_closing_gives_up_after_its_time(stage: Job) -> None:
    stage.complete(2)
    cleaner = stage.cleaner(HeldExecutor())
    cleaner.clean()
    assert not cleaner.close(timeout_seconds=0)


def test_an_executor_that_was_shut_down_leaves_the_files(stage: Job) -> None:
    stage.complete(2)
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    followed: list[int] = []
    cleaner = stage.cleaner(executor)
    cleaner.clean(lambda: followed.append(1))
    assert (stage.deleting.asked, followed, cleaner.cleanings) == ([], [1], 0)


def test_files_that_checkpoints_in_progress_name_are_pinned(job: AlignedJob) -> None:
    coordinator = job.coordinator(max_concurrent_checkpoints=2)
    for _ in range(2):
        job.take(coordinator)
    with job.jobs.transaction(job.job_id) as tx:
        found = tx.checkpoint(1)
        assert found is not None
        tx.update_checkpoint(replace(found, discarded_at=None), expected=found.status)
    job.pass_time(1)
    uris = {acknowledged_file(job, coordinator, number) for number in (3, 4)}
    assert job.leader is not None
    deleting, storage = Deleting(), AlignedFiles(job.storage, job.job_id, "sales")
    CheckpointsCleaner(job.rows, job.leader, storage, deleting, deleting, InlineExecutor()).clean()
    assert (deleting.asked, deleting.pinned) == ([(1,)], [uris])


def acknowledged_file(job: AlignedJob, coordinator: CheckpointCoordinator, checkpoint_id: int) -> str:
    """Trigger a checkpoint, acknowledge it for one of two tasks and return the file of its state."""
    coordinator.trigger_checkpoint(CHECKPOINT)
    state = job.state(job.tasks[0], checkpoint_id)
    coordinator.receive_acknowledge_message(job.acknowledgement(job.tasks[0], checkpoint_id, state=state))
    stream = state.subtask_states[0].managed_operator[0].stream
    assert isinstance(stream, FileStateHandle)
    return stream.uri


def test_files_wait_for_tasks_that_were_triggered_before_the_end(job: AlignedJob) -> None:
    coordinator = job.coordinator(max_concurrent_checkpoints=2)
    job.take(coordinator)
    coordinator.trigger_checkpoint(CHECKPOINT)
    coordinator.trigger_checkpoint(CHECKPOINT)
    job.acknowledge_all(coordinator, 2)
    assert (job.status(1), job.storage.exists(job.location(1))) == ("subsumed", True)
    job.acknowledge_all(coordinator, 3)
    assert not job.storage.exists(job.location(1))


def test_rows_are_read_again_before_the_delete(stage: Job) -> None:
    stage.complete(2)
    executor = HeldExecutor()
    stage.cleaner(executor).clean()
    stage.cleaner().clean()
    executor.run_all()
    assert stage.deleting.asked == [(1,), ()]


def test_a_checkpoint_whose_deletion_has_not_ended_is_not_started_again(stage: Job) -> None:
    stage.complete(2)
    executor = HeldExecutor()
    cleaner = stage.cleaner(executor)
    cleaner.clean()
    cleaner.clean()
    assert (len(executor.held), cleaner.cleanings) == (1, 1)
    executor.run_all()
    stage.complete(1)
    cleaner.clean()
    assert len(executor.held) == 1


def test_what_other_operators_of_the_job_retain_is_told_to_the_deleter(stage: Job) -> None:
    other = stage.coordinator.register(make_registration(uid="other")).attempt
    complete_checkpoint(stage.coordinator, other)
    stage.complete(2)
    stage.cleaner().clean()
    assert stage.deleting.retained == [{1, 3}]


PROPERTIES = {
    "c": CheckpointProperties.for_checkpoint(),
    "f": CheckpointProperties.for_checkpoint(is_full=True),
    "s": CheckpointProperties.for_savepoint(),
    "u": CheckpointProperties.for_unclaimed_snapshot(),
    "x": CheckpointProperties.for_sync_savepoint(terminate=False),
    "t": CheckpointProperties.for_sync_savepoint(terminate=True),
}


def checkpoints(text: str) -> list[CheckpointRecord]:
    """Read checkpoints such as ``c1 s2``: c, f(ull), s(avepoint), u(nclaimed), x (stop), t(erminate)."""
    return [completed(int(word[1:]), properties=PROPERTIES[word[0]]) for word in text.split()]


def kept(text: str, num_retained: int) -> str:
    found = checkpoints(text)
    gone = {c.checkpoint_id for c in beyond_retention(found, num_retained)}
    return " ".join(word for word in text.split() if int(word[1:]) not in gone)


@pytest.mark.parametrize(
    ("before", "num_retained", "after"),
    [
        ("c1 c2 s3 s4 s5", 1, "c2 s5"),
        ("c1 s2 c3", 1, "c3"),
        ("c1 s2 t3", 1, "t3"),
        ("c1 s2 x3", 1, "x3"),
        ("c1 c2 c3", 1, "c3"),
        ("c1 c2 c3", 2, "c2 c3"),
        ("c1 c2 c3", 3, "c1 c2 c3"),
        ("c1 f2 f3", 1, "f3"),
        ("s1 s2 s3", 1, "s3"),
        ("c1 s2 s3", 2, "c1 s3"),
        ("s1 c2 s3", 2, "c2 s3"),
        ("c1 x2 c3", 1, "c3"),
        ("c1 x2 s3", 1, "c1 s3"),
        ("u1 c2", 1, "c2"),
        ("u1 c2 c3", 2, "c2 c3"),
        ("u1", 1, "u1"),
        ("", 1, ""),
    ],
)
def test_the_rule_of_subsumption(before, num_retained, after):
    assert kept(before, num_retained) == after


def test_the_oldest_go_first_and_come_first():
    assert [c.checkpoint_id for c in beyond_retention(checkpoints("c1 c2 s3 s4 s5"), 1)] == [1, 3, 4]


def test_a_number_below_one_is_refused():
    with pytest.raises(InvalidConfigurationError, match="num_retained"):
        beyond_retention(checkpoints("c1"), 0)


def walked(text: str, num_retained: int) -> str:
    """Apply the rule as it is told: from the oldest on, one by one, while there are too many."""
    words = text.split()
    own = [word for word in words if word[0] in "cf"]
    for word in list(words):
        is_droppable = word != words[-1] and (word[0] in "suxt" or words[-1][0] in "xt" or word != own[-1])
        if len(words) > num_retained and is_droppable:
            words.remove(word)
    return " ".join(words)


@given(kinds=st.lists(st.sampled_from(sorted(PROPERTIES)), max_size=9), num_retained=st.integers(1, 5))
def test_the_rule_equals_a_walk_from_the_oldest(kinds, num_retained):
    text = " ".join(f"{kind}{index}" for index, kind in enumerate(kinds, 1))
    assert kept(text, num_retained) == walked(text, num_retained)
