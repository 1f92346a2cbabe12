"""Aborts of checkpoints: the rows change first, then tasks are notified and files deleted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from airflow_provider_statecheck.checkpoint.aligned.components import CoordinatorComponents
from airflow_provider_statecheck.checkpoint.aligned.plan import ExecutionStatus, ExecutionTask
from airflow_provider_statecheck.checkpoint.aligned.requests import failure_of, message_of
from airflow_provider_statecheck.checkpoint.aligned.rows import AbortCheckpoints, AbortScope
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord

log = logging.getLogger(__name__)


class CheckpointAborter:
    """
    Aborts pending checkpoints.

    :param components: The components of the coordinator.
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
            attempt_id=attempt_id,
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
