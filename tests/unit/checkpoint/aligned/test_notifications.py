"""Telling tasks how a checkpoint ended."""

from __future__ import annotations

import logging
from concurrent.futures import Executor, ThreadPoolExecutor
from threading import Thread

import pytest

from airflow_provider_statecheck.checkpoint.aligned.notifications import REMEMBERED_CHECKPOINTS, CheckpointNotifier
from airflow_provider_statecheck.checkpoint.aligned.plan import ExecutionTask
from tests.aligned_job import HeldExecutor, InlineExecutor
from tests.unit.checkpoint.aligned.stand_ins import START, RecordingTask


class Job:
    """A notifier and the tasks that were failed by it."""

    def __init__(self, executor: Executor | None = None) -> None:
        self.failed: list[tuple[str, str]] = []
        self.notifier = CheckpointNotifier(executor or InlineExecutor(), self.fail_task)

    def fail_task(self, task: ExecutionTask, error: Exception) -> None:
        self.failed.append((task.uid, str(error)))


def test_each_task_is_told_how_the_checkpoint_ended():
    job, tasks = Job(), [RecordingTask("a"), RecordingTask("b")]
    job.notifier.notify_complete(tasks, 3, START, 1)
    job.notifier.notify_aborted(tasks, 4, 3, START)
    job.notifier.notify_subsumed(tasks, 1)
    assert [task.told for task in tasks] == [[("complete", 3, START, 1), ("aborted", 4, 3, START), ("subsumed", 1)]] * 2


def test_no_task_is_told_twice_of_one_end_of_one_checkpoint():
    job, task = Job(), RecordingTask("a")
    for _ in range(2):
        job.notifier.notify_complete([task, task], 3, START)
        job.notifier.notify_aborted([task], 4, 3, START)
        job.notifier.notify_subsumed([task], 1)
    assert [what for what, *_ in task.told] == ["complete", "aborted", "subsumed"]


def test_a_later_try_of_a_task_is_told_itself():
    job, tasks = Job(), [RecordingTask("a", attempt_id="1"), RecordingTask("a", attempt_id="2")]
    job.notifier.notify_complete(tasks, 3, START)
    assert [len(task.told) for task in tasks] == [1, 1]


def test_two_tasks_with_equal_attempts_are_both_told():
    job, tasks = Job(), [RecordingTask("a"), RecordingTask("b")]
    job.notifier.notify_complete(tasks[:1], 3, START)
    job.notifier.notify_complete(tasks, 3, START)
    assert [len(task.told) for task in tasks] == [1, 1]


def test_no_discarded_checkpoint_is_said_as_minus_one():
    job, task = Job(), RecordingTask("a")
    job.notifier.notify_complete([task], 3, START)
    assert task.told == [("complete", 3, START, -1)]


def test_a_task_that_fails_when_it_is_told_of_a_completion_is_failed_and_the_others_are_told():
    job, tasks = Job(), [RecordingTask("a", fails_at=frozenset({"complete"})), RecordingTask("b")]
    job.notifier.notify_complete(tasks, 3, START)
    assert job.failed == [("a", "task cannot take complete")]
    assert tasks[1].told == [("complete", 3, START, -1)]


@pytest.mark.parametrize("kind", ["aborted", "subsumed"])
def test_a_task_that_fails_when_it_is_told_of_anything_else_goes_on_and_the_others_are_told(kind, caplog):
    job, tasks = Job(), [RecordingTask("a", fails_at=frozenset({kind})), RecordingTask("b")]
    with caplog.at_level(logging.WARNING):
        if kind == "aborted":
            job.notifier.notify_aborted(tasks, 3, 2, START)
        else:
            job.notifier.notify_subsumed(tasks, 3)
    assert job.failed == []
    assert len(tasks[1].told) == 1
    assert f"Operator a failed on the notification that checkpoint 3 is {kind}; it continues" in caplog.text


def test_a_task_that_cannot_be_failed_keeps_none_of_the_others_from_being_told(caplog):
    def cannot(task: ExecutionTask, error: Exception) -> None:
        raise RuntimeError("no such task")

    tasks = [RecordingTask("a", fails_at=frozenset({"complete"})), RecordingTask("b")]
    CheckpointNotifier(InlineExecutor(), cannot).notify_complete(tasks, 3, START)
    assert len(tasks[1].told) == 1
    assert "Operator a could not be failed" in caplog.text


def test_tasks_are_told_by_the_executor_and_once_even_if_it_has_not_told_them_yet():
    executor = HeldExecutor()
    job, task = Job(executor), RecordingTask("a")
    for _ in range(2):
        job.notifier.notify_aborted([task], 3, 2, START)
    assert task.told == []
    executor.run_all()
    assert task.told == [("aborted", 3, 2, START)]


def test_a_notification_that_the_executor_no_longer_takes_is_lost_with_a_warning(caplog):
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    job, task = Job(executor), RecordingTask("a")
    with caplog.at_level(logging.WARNING):
        job.notifier.notify_complete([task], 3, START)
    assert (task.told, job.failed) == ([], [])
    assert "A notification of the end of a checkpoint was not sent" in caplog.text


def test_old_checkpoints_are_forgotten():
    job, task = Job(), RecordingTask("a")
    for checkpoint_id in range(REMEMBERED_CHECKPOINTS + 1):
        job.notifier.notify_subsumed([task], checkpoint_id)
    task.told.clear()
    job.notifier.notify_subsumed([task], 1)
    assert task.told == []
    job.notifier.notify_subsumed([task], 0)
    assert task.told == [("subsumed", 0)]


def test_a_task_may_use_the_notifier_for_no_lock_is_held():
    job, other = Job(), RecordingTask("other")

    class Calling(RecordingTask):
        def notify_checkpoint_subsumed(self, checkpoint_id: int) -> None:
            thread = Thread(target=job.notifier.notify_subsumed, args=([other], checkpoint_id), daemon=True)
            thread.start()
            thread.join(10)

    job.notifier.notify_subsumed([Calling("a")], 1)
    assert other.told == [("subsumed", 1)]
