"""
Parts that the steps of the coordinator share: notifier of tasks, messages, statistics.

Notifications are sent at most once and may be lost. Receivers treat a completion as the completion of all earlier
checkpoints.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from threading import Lock
from typing import Any

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.aligned.contents import AlignedStorage
from airflow_provider_statecheck.checkpoint.aligned.decider import CheckpointRequestDecider
from airflow_provider_statecheck.checkpoint.aligned.steps import report_failure
from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.failure import (
    CheckpointException,
    CheckpointFailureManager,
    CheckpointFailureReason,
)
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.records import RowsVersion
from airflow_provider_statecheck.checkpoint.states.handles import OperatorState
from airflow_provider_statecheck.checkpoint.statistics import HISTORY_SIZE, CheckpointStatsSnapshot, statistics_of
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError
from airflow_provider_statecheck.flink.completed_store import CheckpointsCleaner, CompletedCheckpointStore
from airflow_provider_statecheck.flink.participants import MasterHooks, OperatorCoordinators
from airflow_provider_statecheck.flink.plan import CheckpointPlanCalculator, ExecutionStatus, ExecutionTask
from airflow_provider_statecheck.flink.state_handles import CheckpointIDCounter

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorComponents:
    """The stores and collaborators of one coordinator; none of them caches rows."""

    rows: AlignedCheckpoints
    leader: AttemptRef
    lease: timedelta
    """The time after which another coordinator may take over a finalization."""
    config: CheckpointConfig
    tasks: Sequence[ExecutionTask]
    """The tasks to notify of the end of a checkpoint while they run."""
    plan_calculator: CheckpointPlanCalculator
    decider: CheckpointRequestDecider
    id_counter: CheckpointIDCounter
    completed_store: CompletedCheckpointStore
    storage: AlignedStorage
    cleaner: CheckpointsCleaner
    notifier: CheckpointNotifier
    hooks: MasterHooks
    operator_coordinators: OperatorCoordinators
    failure_manager: CheckpointFailureManager
    executor: Executor
    job_failures: list[Exception] = field(default_factory=list)
    """Errors raised by the callback that fails the job; see :meth:`raising_job_failures`."""

    def count_failure(self, error: CheckpointException, **details: Any) -> None:
        """
        Count a failed checkpoint.

        :meth:`raising_job_failures` raises an error of the callback that fails the job.
        """
        try:
            self.failure_manager.handle_checkpoint_exception(error, **details)
        except Exception as failure:
            log.exception("The callback that fails the job raised an error")
            self.job_failures.append(failure)

    @contextmanager
    def raising_job_failures(self) -> Iterator[None]:
        """Run the block, then raise an error of the callback that fails the job, even if the block fails."""
        try:
            yield
        finally:
            # Another thread may take one, too.
            failures, self.job_failures[:] = self.job_failures[:1], self.job_failures[1:]
            for failure in failures:
                raise failure


def running(components: CoordinatorComponents) -> list[ExecutionTask]:
    """Return the running tasks, which can receive notifications."""
    return [task for task in components.tasks if task.status is ExecutionStatus.RUNNING]


REMEMBERED_CHECKPOINTS = 1000


class NotificationKind(StrEnum):
    """The kind of a notification."""

    COMPLETE = "complete"
    ABORTED = "aborted"
    SUBSUMED = "subsumed"


class CheckpointNotifier:
    """
    Notifies tasks of the end of a checkpoint, each at most once.

    An error on an abort or a subsumption is logged. An error on a completion fails the task, because it has not
    committed its output.

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
        self._notify(
            NotificationKind.COMPLETE,
            tasks,
            checkpoint_id,
            lambda task: task.notify_checkpoint_complete(checkpoint_id, timestamp, last_subsumed_id),
        )

    def notify_aborted(
        self, tasks: Iterable[ExecutionTask], checkpoint_id: int, latest_completed_id: int, timestamp: datetime
    ) -> None:
        """Notify tasks of an aborted checkpoint and the id of the latest completed one, -1 for none."""
        self._notify(
            NotificationKind.ABORTED,
            tasks,
            checkpoint_id,
            lambda task: task.notify_checkpoint_aborted(checkpoint_id, latest_completed_id, timestamp),
        )

    def notify_subsumed(self, tasks: Iterable[ExecutionTask], checkpoint_id: int) -> None:
        """Notify tasks of a subsumed checkpoint, which no restore uses any more."""
        self._notify(
            NotificationKind.SUBSUMED, tasks, checkpoint_id, lambda task: task.notify_checkpoint_subsumed(checkpoint_id)
        )

    def _notify(
        self,
        kind: NotificationKind,
        tasks: Iterable[ExecutionTask],
        checkpoint_id: int,
        call: Callable[[ExecutionTask], None],
    ) -> None:
        for task in self._not_yet_notified(kind, checkpoint_id, tasks):
            try:
                self._executor.submit(self._call, kind, task, checkpoint_id, call)
            except RuntimeError as error:
                # The executor was shut down. Receivers tolerate lost notifications.
                log.warning("A notification of the end of a checkpoint was not sent: %s", error)

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

    def _call(
        self, kind: NotificationKind, task: ExecutionTask, checkpoint_id: int, call: Callable[[ExecutionTask], None]
    ) -> None:
        try:
            call(task)
        except Exception as error:
            is_fatal = kind is NotificationKind.COMPLETE
            log.log(
                logging.ERROR if is_fatal else logging.WARNING,
                "Operator %s failed on the notification that checkpoint %s is %s%s",
                task.uid,
                checkpoint_id,
                kind.value,
                "" if is_fatal else "; it continues",
                exc_info=True,
            )
            if is_fatal:
                self._fail(task, error)

    def _fail(self, task: ExecutionTask, error: Exception) -> None:
        try:
            self._fail_task(task, error)
        except Exception:
            # The executor would store the error in a future that is never read.
            log.exception("Operator %s could not be failed", task.uid)


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


class CheckpointStatsTracker:
    """
    Tracker of the checkpoint statistics of an operator, or of aligned checkpoints.

    The coordinator counts completed and aborted checkpoints with their rows. Reports add details that the rows do not
    contain, and are idempotent except for failures without an id.

    :param history_size: Maximum length of the history, from 0 to ``HISTORY_SIZE``.
    :raises InvalidConfigurationError: for a history size out of range.
    """

    def __init__(self, rows: AlignedCheckpoints, leader: AttemptRef, *, history_size: int = HISTORY_SIZE) -> None:
        require("history_size", history_size, lambda n: 0 <= n <= HISTORY_SIZE, f"from 0 to {HISTORY_SIZE}")
        self._rows = rows
        self._leader = leader
        self._history_size = history_size
        self._latest: tuple[RowsVersion, CheckpointStatsSnapshot] | None = None

    def report_failed_checkpoint(self, checkpoint_id: int, error: CheckpointException) -> None:
        """Record the root cause of a failed checkpoint, which counts as one without an id if it has no row."""
        report_failure(self._rows, self._leader, error, checkpoint_id)

    def report_failed_checkpoint_without_in_progress(self, error: CheckpointException) -> None:
        """Count a checkpoint that failed before it had an id; each call counts."""
        self._rows.report_failure(self._leader, error.reason)

    def create_snapshot(self) -> CheckpointStatsSnapshot:
        """
        Return the current statistics, as the same object while the job does not change.

        :raises CheckpointNotFoundError: if the job or the operator does not exist.
        """
        view = self._rows.describe(self._leader.job_id)
        if self._latest is None or self._latest[0] != view.job.rows_version:
            operator = view.operator(self._leader.operator_id)
            if operator is None:
                raise CheckpointNotFoundError(
                    f"Expected operator {self._leader.operator_id} in job {view.job.name!r}, found none; use the id of "
                    "an operator of the job."
                )
            statistics = statistics_of(view, operator, history_size=self._history_size)
            self._latest = (view.job.rows_version, statistics)
        return self._latest[1]
