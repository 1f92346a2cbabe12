"""Components of the aligned coordinator, shared by its steps, and the aborter of checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from airflow_provider_statecheck.checkpoint.aligned.completed_store import CheckpointsCleaner, CompletedCheckpointStore
from airflow_provider_statecheck.checkpoint.aligned.notifications import CheckpointNotifier
from airflow_provider_statecheck.checkpoint.aligned.participants import MasterHooks, OperatorCoordinators
from airflow_provider_statecheck.checkpoint.aligned.plan import (
    CheckpointPlanCalculator,
    CheckpointRequestDecider,
    ExecutionStatus,
    ExecutionTask,
)
from airflow_provider_statecheck.checkpoint.aligned.requests import failure_of, message_of
from airflow_provider_statecheck.checkpoint.aligned.rows import AbortCheckpoints, AbortScope, CoordinatorRows
from airflow_provider_statecheck.checkpoint.aligned.snapshot_contents import SnapshotStorage
from airflow_provider_statecheck.checkpoint.aligned.state_handles import CheckpointIDCounter
from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.failure import (
    CheckpointException,
    CheckpointFailureManager,
    CheckpointFailureReason,
)
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorComponents:
    """The stores and collaborators of one coordinator; none of them caches rows."""

    rows: CoordinatorRows
    leader: AttemptRef
    name: str
    """The unique name of the coordinator as a finalizer."""
    lease: timedelta
    """The time after which another coordinator may take over a finalization."""
    config: CheckpointConfig
    tasks: Sequence[ExecutionTask]
    """The tasks to notify of the end of a checkpoint while they run."""
    plan_calculator: CheckpointPlanCalculator
    decider: CheckpointRequestDecider
    id_counter: CheckpointIDCounter
    completed_store: CompletedCheckpointStore
    storage: SnapshotStorage
    cleaner: CheckpointsCleaner
    notifier: CheckpointNotifier
    hooks: MasterHooks
    operator_coordinators: OperatorCoordinators
    failure_manager: CheckpointFailureManager
    executor: Executor
    job_failures: list[Exception] = field(default_factory=list)
    """Errors raised by the callback that fails the job; see :meth:`raising_job_failures`."""

    def count_failure(self, error: CheckpointException, **details: Any) -> None:
        """Count a failed checkpoint; :meth:`raising_job_failures` raises an error of the callback that fails the job."""
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
            if self.job_failures:
                raise self.job_failures.pop(0)


class CheckpointAborter:
    """
    Aborts pending checkpoints.

    :param ended: Called after a cleaning has ended; it triggers queued checkpoints.
    """

    def __init__(self, components: CoordinatorComponents, ended: Callable[[], None]) -> None:
        self._components = components
        self._ended = ended

    def abort_one(self, checkpoint_id: int, error: CheckpointException, *, attempt_id: str = "") -> bool:
        """
        Abort a checkpoint if it is pending.

        :param attempt_id: The attempt that caused the abort, empty for the coordinator.
        :return: Whether the checkpoint was pending.
        """
        return bool(self.abort(AbortScope.CHECKPOINT, error, checkpoint_id=checkpoint_id, attempt_id=attempt_id))

    def abort(
        self, scope: AbortScope, error: CheckpointException, *, attempt_id: str = "", **fields: Any
    ) -> tuple[CheckpointRecord, ...]:
        """
        Abort the checkpoints of a scope in one transition, then delete their files and notify the tasks.

        Errors after the transition are logged.

        :param attempt_id: The attempt that caused the abort, empty for the coordinator.
        :param fields: Further fields of ``AbortCheckpoints``.
        :return: The aborted checkpoints.
        """
        components = self._components
        message = AbortCheckpoints(
            leader=components.leader,
            scope=scope,
            reason=error.reason,
            message=message_of(error),
            **fields,
        )
        aborted = components.rows.abort(message)
        for each in aborted:
            log.info("Aborted checkpoint %s: %s", each.checkpoint_id, each.failure_message)
            _run_logged(partial(self._notify, each))
            self._count(each, failure_of(each) if scope is AbortScope.EXPIRED else error, attempt_id)
        if aborted:
            _run_logged(self._clean)
        return aborted

    def expire(self) -> None:
        """Abort the pending checkpoints whose timeout has passed."""
        uids = {task.operator_id: task.uid for task in self._components.tasks}
        self.abort(AbortScope.EXPIRED, CheckpointException(CheckpointFailureReason.CHECKPOINT_EXPIRED), uids=uids)

    def _clean(self) -> None:
        self._components.cleaner.clean(self._ended)

    def _notify(self, aborted: CheckpointRecord) -> None:
        checkpoint_id = aborted.checkpoint_id
        latest = self._components.completed_store.get_latest_checkpoint_id() or -1
        tasks = running(self._components)
        self._components.notifier.notify_aborted(tasks, checkpoint_id, latest, aborted.triggered_at)
        self._components.operator_coordinators.notify_checkpoint_aborted(checkpoint_id)

    def _count(self, aborted: CheckpointRecord, error: CheckpointException, attempt_id: str) -> None:
        operators = (task.uid for task in self._components.tasks if attempt_id and task.attempt_id == attempt_id)
        self._components.count_failure(
            error,
            properties=aborted.properties,
            checkpoint_id=aborted.checkpoint_id,
            attempt_id=attempt_id or None,
            operator=next(operators, ""),
        )


def running(components: CoordinatorComponents) -> list[ExecutionTask]:
    """Return the running tasks, which can receive notifications."""
    return [task for task in components.tasks if task.status is ExecutionStatus.RUNNING]


def _run_logged(step: Callable[[], None]) -> None:
    try:
        step()
    except Exception:
        log.exception("A step after the abort of checkpoints failed")
