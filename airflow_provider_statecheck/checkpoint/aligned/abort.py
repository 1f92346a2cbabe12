"""Aborts of checkpoints: the rows change first, then tasks are notified and files deleted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial

from airflow_provider_statecheck.checkpoint.aligned import transitions
from airflow_provider_statecheck.checkpoint.aligned.components import CoordinatorComponents
from airflow_provider_statecheck.checkpoint.aligned.plan import ExecutionStatus, ExecutionTask
from airflow_provider_statecheck.checkpoint.aligned.transitions import Aborted
from airflow_provider_statecheck.checkpoint.failure import CheckpointException
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus
from airflow_provider_statecheck.checkpoint.store import JobTransaction

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

    def abort_one(self, checkpoint_id: int, error: CheckpointException, *, attempt_id: str | None = None) -> bool:
        """
        Abort a checkpoint if it is pending.

        :param attempt_id: The attempt that caused the abort, ``None`` for the coordinator.
        :return: Whether the checkpoint was pending.
        """

        def chosen(tx: JobTransaction) -> list[CheckpointRecord]:
            pending = transitions.of_status(tx, CheckpointStatus.PENDING)
            return [c for c in pending if c.checkpoint_id == checkpoint_id]

        return bool(self.abort(chosen, error, attempt_id=attempt_id))

    def abort(
        self,
        choose: Callable[[JobTransaction], Iterable[CheckpointRecord]],
        error: CheckpointException,
        *,
        attempt_id: str | None = None,
    ) -> list[Aborted]:
        """Abort the chosen pending checkpoints in one transition, then delete their files and notify the tasks."""
        with self._components.transition() as tx:
            aborted = [transitions.abort(tx, c, error, attempt_id=attempt_id) for c in choose(tx)]
        self.settle(aborted)
        return aborted

    def settle(self, aborted: Iterable[Aborted]) -> None:
        """Notify the tasks, count the failures and delete the files of aborted checkpoints; errors are logged."""
        aborted = tuple(aborted)
        for each in aborted:
            log.info("Aborted checkpoint %s: %s", each.checkpoint.checkpoint_id, each.error)
            _run_logged(partial(self._notify, each))
            self._count(each)
        if aborted:
            _run_logged(self._clean)

    def _clean(self) -> None:
        self._components.cleaner.clean(self._ended)

    def _notify(self, aborted: Aborted) -> None:
        checkpoint = aborted.checkpoint
        latest = self._components.completed_store.get_latest_checkpoint_id() or -1
        tasks, checkpoint_id = running(self._components), checkpoint.checkpoint_id
        self._components.notifier.notify_aborted(tasks, checkpoint_id, latest, checkpoint.triggered_at)
        self._components.operator_coordinators.notify_checkpoint_aborted(checkpoint.checkpoint_id)

    def _count(self, aborted: Aborted) -> None:
        own = (
            transitions.acknowledgement_of(aborted.acknowledgements, aborted.attempt_id)
            if aborted.attempt_id is not None
            else None
        )
        tasks = {task.operator_id: task.uid for task in self._components.tasks}
        self._components.count_failure(
            aborted.error,
            properties=aborted.checkpoint.properties,
            checkpoint_id=aborted.checkpoint.checkpoint_id,
            attempt_id=aborted.attempt_id,
            operator="" if own is None else tasks.get(own.operator_id, own.operator_id),
        )


def running(components: CoordinatorComponents) -> list[ExecutionTask]:
    """Return the running tasks, which can receive notifications."""
    return [task for task in components.tasks if task.status is ExecutionStatus.RUNNING]


def _run_logged(step: Callable[[], None]) -> None:
    try:
        step()
    except Exception:
        log.exception("A step after the abort of checkpoints failed")
