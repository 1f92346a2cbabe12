"""
Messages between the coordinator and tasks: notifications, acknowledgements and declines.

Notifications are sent at most once and may be lost. Receivers treat a completion as the completion of all earlier
checkpoints.
"""

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
from airflow_provider_statecheck.checkpoint.aligned.snapshot_contents import SnapshotPart
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.states.handles import OperatorState

log = logging.getLogger(__name__)

REMEMBERED_CHECKPOINTS = 1000


class NotificationKind(StrEnum):
    """The kind of a notification."""

    COMPLETE = "complete"
    ABORTED = "aborted"
    SUBSUMED = "subsumed"


class CheckpointNotifier:
    """
    Notifies tasks of the end of a checkpoint, each at most once.

    An error on an abort or a subsumption is logged. An error on a completion fails the task, because it has not committed
    its output.

    :param executor: The executor that calls the tasks; it must not run calls in a thread that holds a lock.
    :param fail_task: The callback that fails a task after an error on a completion.
    """

    def __init__(self, executor: Executor, fail_task: Callable[[ExecutionTask, Exception], None]) -> None:
        self._executor = executor
        self._fail_task = fail_task
        self._lock = Lock()
        self._notified: OrderedDict[int, set[tuple[NotificationKind, str, str]]] = OrderedDict()

    def notify_complete(
        self, tasks: Iterable[ExecutionTask], checkpoint_id: int, timestamp: datetime, last_subsumed_id: int = -1
    ) -> None:
        """Notify tasks of a completed checkpoint and the id of the one discarded for it, -1 for none."""
        for task in self._not_yet_notified(NotificationKind.COMPLETE, checkpoint_id, tasks):
            call = partial(task.notify_checkpoint_complete, checkpoint_id, timestamp, last_subsumed_id)
            self._submit(partial(self._complete, task, checkpoint_id, call))

    def notify_aborted(
        self, tasks: Iterable[ExecutionTask], checkpoint_id: int, latest_completed_id: int, timestamp: datetime
    ) -> None:
        """Notify tasks of an aborted checkpoint and the id of the latest completed one, -1 for none."""
        for task in self._not_yet_notified(NotificationKind.ABORTED, checkpoint_id, tasks):
            call = partial(task.notify_checkpoint_aborted, checkpoint_id, latest_completed_id, timestamp)
            self._submit(partial(_tolerate, NotificationKind.ABORTED, task, checkpoint_id, call))

    def notify_subsumed(self, tasks: Iterable[ExecutionTask], checkpoint_id: int) -> None:
        """Notify tasks of a subsumed checkpoint, which no restore uses any more."""
        for task in self._not_yet_notified(NotificationKind.SUBSUMED, checkpoint_id, tasks):
            call = partial(task.notify_checkpoint_subsumed, checkpoint_id)
            self._submit(partial(_tolerate, NotificationKind.SUBSUMED, task, checkpoint_id, call))

    def _not_yet_notified(
        self, kind: NotificationKind, checkpoint_id: int, tasks: Iterable[ExecutionTask]
    ) -> list[ExecutionTask]:
        pending = []
        with self._lock:
            notified = self._notified.setdefault(checkpoint_id, set())
            for task in tasks:
                key = (kind, task.operator_id, task.attempt_id)
                if key not in notified:
                    notified.add(key)
                    pending.append(task)
            while len(self._notified) > REMEMBERED_CHECKPOINTS:
                self._notified.popitem(last=False)
        return pending

    def _submit(self, call: Callable[[], None]) -> None:
        try:
            self._executor.submit(call)
        except RuntimeError as error:
            # The executor was shut down. Receivers tolerate lost notifications.
            log.warning("A notification of the end of a checkpoint was not sent: %s", error)

    def _complete(self, task: ExecutionTask, checkpoint_id: int, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            log.exception(
                "Operator %s failed on the notification that checkpoint %s is complete", task.uid, checkpoint_id
            )
            self._fail(task, error)

    def _fail(self, task: ExecutionTask, error: Exception) -> None:
        try:
            self._fail_task(task, error)
        except Exception:
            # The executor would store the error in a future that is never read.
            log.exception("Operator %s could not be failed", task.uid)


def _tolerate(kind: NotificationKind, task: ExecutionTask, checkpoint_id: int, call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:
        log.warning(
            "Operator %s failed on the notification that checkpoint %s is %s; it continues",
            task.uid,
            checkpoint_id,
            kind.value,
            exc_info=True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgeMessage:
    """Acknowledgement of a checkpoint by one operator; its state must be on storage before it is sent."""

    job_id: JobId
    attempt_id: str
    """The attempt of the operator's task."""
    checkpoint_id: int
    metrics: dict[str, int] = field(default_factory=dict)
    state: OperatorState | None = None
    """The state of all subtasks, ``None`` for an operator without state."""
    part: SnapshotPart | None = None
    """The copied checkpoint of a stage, which is its part of a savepoint of the whole job."""
    finished_subtasks: frozenset[int] = frozenset()
    """The indexes of subtasks that had ended before the checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclineMessage:
    """Refusal of a checkpoint by one operator."""

    job_id: JobId
    attempt_id: str
    checkpoint_id: int
    cause: CheckpointException = field(
        default_factory=lambda: CheckpointException(CheckpointFailureReason.CHECKPOINT_DECLINED)
    )
