"""Messages to tasks about a checkpoint's end, and their replies."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import partial
from threading import Lock

from airflow_provider_statecheck.checkpoint.aligned.plan import ExecutionTask
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.states.handles import OperatorState

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


class CompletionTracker:
    """
    Tells a receiver which of its snapshots an end of a checkpoint is about, each of them once.

    A completion stands for that of all earlier checkpoints, since theirs may have been lost. A receiver whose later
    snapshots carry on what an aborted one had staged does not pass aborts on: the next completion covers it.

    :param latest_completed_id: The checkpoint that the receiver was restored from, 0 for none.
    """

    def __init__(self, latest_completed_id: int = 0) -> None:
        self.latest_completed_id = latest_completed_id
        """The latest checkpoint known to be complete."""
        self._open: set[int] = set()

    def took(self, checkpoint_id: int) -> None:
        """Note that the receiver has saved its part of a checkpoint; one that is known to be over is not noted."""
        if checkpoint_id > self.latest_completed_id:
            self._open.add(checkpoint_id)

    def complete(self, checkpoint_id: int) -> tuple[int, ...]:
        """Return the snapshots that are complete with this one and were not before, the oldest first."""
        self.latest_completed_id = max(self.latest_completed_id, checkpoint_id)
        completed = tuple(sorted(taken for taken in self._open if taken <= checkpoint_id))
        self._open.difference_update(completed)
        return completed

    def aborted(self, checkpoint_id: int) -> bool:
        """Tell whether a snapshot is to be thrown away now; not if it was before, or was never taken, or is complete."""
        if checkpoint_id not in self._open:
            return False
        self._open.remove(checkpoint_id)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgeMessage:
    """The part that one operator has in a checkpoint; its bytes are on storage before this is sent."""

    job_id: JobId
    attempt_id: str
    """Which try of the operator's task answers."""
    checkpoint_id: int
    metrics: dict[str, int] = field(default_factory=dict)
    state: OperatorState | None = None
    """The state of all its subtasks, ``None`` for an operator without state."""
    finished_subtasks: frozenset[int] = frozenset()
    """Subtasks that had ended before the checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclineMessage:
    """An operator will not take its part of a checkpoint."""

    job_id: JobId
    attempt_id: str
    checkpoint_id: int
    cause: CheckpointException = field(
        default_factory=lambda: CheckpointException(CheckpointFailureReason.CHECKPOINT_DECLINED)
    )
