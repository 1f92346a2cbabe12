"""Telling tasks how a checkpoint ended."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from datetime import datetime
from enum import StrEnum
from functools import partial
from threading import Lock

from airflow_provider_statecheck.checkpoint.coordination.plan import ExecutionTask

log = logging.getLogger(__name__)

REMEMBERED_CHECKPOINTS = 1000


class NotificationKind(StrEnum):
    """What a task is told of a checkpoint."""

    COMPLETE = "complete"
    ABORTED = "aborted"
    SUBSUMED = "subsumed"


class CheckpointNotifier:
    """
    Tells each task at most once of each end of a checkpoint.

    A task that fails when it is told of an abort, or that nothing restores from a checkpoint any more, goes on; one that
    fails when it is told of a completion has not committed what it should, and is failed. What was not delivered is not
    told again, so receivers take a completion for that of the earlier checkpoints too.

    :param executor: What calls the tasks; never the caller's own thread while it holds a lock.
    :param fail_task: What is done with a task that failed when it was told of a completion.
    """

    def __init__(self, executor: Executor, fail_task: Callable[[ExecutionTask, Exception], None]) -> None:
        self._executor = executor
        self._fail_task = fail_task
        self._lock = Lock()
        self._told: OrderedDict[int, set[tuple[NotificationKind, str, str]]] = OrderedDict()

    def notify_complete(
        self, tasks: Iterable[ExecutionTask], checkpoint_id: int, timestamp: datetime, last_subsumed_id: int = -1
    ) -> None:
        """Tell tasks that a checkpoint is complete, and which one was discarded for it, -1 for none."""
        for task in self._untold(NotificationKind.COMPLETE, checkpoint_id, tasks):
            call = partial(task.notify_checkpoint_complete, checkpoint_id, timestamp, last_subsumed_id)
            self._submit(partial(self._complete, task, checkpoint_id, call))

    def notify_aborted(
        self, tasks: Iterable[ExecutionTask], checkpoint_id: int, latest_completed_id: int, timestamp: datetime
    ) -> None:
        """Tell tasks that a checkpoint will never be complete, and which one is the latest, -1 for none."""
        for task in self._untold(NotificationKind.ABORTED, checkpoint_id, tasks):
            call = partial(task.notify_checkpoint_aborted, checkpoint_id, latest_completed_id, timestamp)
            self._submit(partial(_tolerate, NotificationKind.ABORTED, task, checkpoint_id, call))

    def notify_subsumed(self, tasks: Iterable[ExecutionTask], checkpoint_id: int) -> None:
        """Tell tasks that nothing restores from a checkpoint any more."""
        for task in self._untold(NotificationKind.SUBSUMED, checkpoint_id, tasks):
            call = partial(task.notify_checkpoint_subsumed, checkpoint_id)
            self._submit(partial(_tolerate, NotificationKind.SUBSUMED, task, checkpoint_id, call))

    def _untold(
        self, kind: NotificationKind, checkpoint_id: int, tasks: Iterable[ExecutionTask]
    ) -> list[ExecutionTask]:
        untold = []
        with self._lock:
            told = self._told.setdefault(checkpoint_id, set())
            for task in tasks:
                key = (kind, task.operator_id, task.attempt_id)
                if key not in told:
                    told.add(key)
                    untold.append(task)
            while len(self._told) > REMEMBERED_CHECKPOINTS:
                self._told.popitem(last=False)
        return untold

    def _submit(self, call: Callable[[], None]) -> None:
        try:
            self._executor.submit(call)
        except RuntimeError as error:
            # An executor that was shut down takes nothing; receivers are made for notifications that are lost.
            log.warning("Tasks are not told how a checkpoint ended: %s", error)

    def _complete(self, task: ExecutionTask, checkpoint_id: int, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            log.exception("Operator %s failed when it was told that checkpoint %s is complete", task.uid, checkpoint_id)
            self._fail(task, error)

    def _fail(self, task: ExecutionTask, error: Exception) -> None:
        try:
            self._fail_task(task, error)
        except Exception:
            # The executor would keep the error in a future that nobody reads.
            log.exception("Operator %s could not be failed", task.uid)


def _tolerate(kind: NotificationKind, task: ExecutionTask, checkpoint_id: int, call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:
        log.warning(
            "Operator %s failed when it was told that checkpoint %s is %s; it goes on",
            task.uid,
            checkpoint_id,
            kind.value,
            exc_info=True,
        )
