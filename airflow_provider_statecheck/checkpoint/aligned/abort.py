"""Aborts of checkpoints: the rows change first, then files are deleted and tasks notified."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial

from airflow_provider_statecheck.checkpoint.aligned import transitions
from airflow_provider_statecheck.checkpoint.aligned.completed_checkpoint import DiscardPlan, outside, private_states
from airflow_provider_statecheck.checkpoint.aligned.components import CoordinatorComponents
from airflow_provider_statecheck.checkpoint.aligned.plan import ExecutionStatus, ExecutionTask
from airflow_provider_statecheck.checkpoint.aligned.retained_checkpoints import confirm_discarded, latest_id
from airflow_provider_statecheck.checkpoint.aligned.snapshot_contents import contents, merged
from airflow_provider_statecheck.checkpoint.aligned.transitions import Aborted
from airflow_provider_statecheck.checkpoint.failure import CheckpointException
from airflow_provider_statecheck.checkpoint.fencing import ALIGNED_OPERATOR_ID
from airflow_provider_statecheck.checkpoint.records import AcknowledgementRecord, CheckpointRecord, CheckpointStatus
from airflow_provider_statecheck.checkpoint.states.handles import StreamStateHandle
from airflow_provider_statecheck.checkpoint.store import JobTransaction
from airflow_provider_statecheck.exceptions import CoordinatorError, StateCheckError

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
        """Delete the files, notify the tasks and count the failures of aborted checkpoints; errors are logged."""
        for each in aborted:
            log.info("Aborted checkpoint %s: %s", each.checkpoint.checkpoint_id, each.error)
            for step in (self._discard, self._notify):
                _run_logged(partial(step, each), each.checkpoint.checkpoint_id)
            self._count(each)

    def clean(self, checkpoint: CheckpointRecord, acknowledgements: Iterable[AcknowledgementRecord]) -> None:
        """Delete the files of an aborted checkpoint in the background."""
        states = outside(self._states(acknowledgements), checkpoint.location)
        plan = DiscardPlan(states=states, location=checkpoint.location)
        self._components.cleaner.clean(
            plan, f"checkpoint {checkpoint.checkpoint_id}", partial(self._cleaned, checkpoint)
        )

    def _discard(self, aborted: Aborted) -> None:
        try:
            self.clean(aborted.checkpoint, aborted.acknowledgements)
        except CoordinatorError as error:
            checkpoint_id = aborted.checkpoint.checkpoint_id
            log.warning("The files of checkpoint %s are left to garbage collection: %s", checkpoint_id, error)

    def _states(self, acknowledgements: Iterable[AcknowledgementRecord]) -> tuple[StreamStateHandle, ...]:
        # The coordinator's manifest refers to state that other checkpoints own.
        of_tasks = [a for a in acknowledgements if a.operator_id != ALIGNED_OPERATOR_ID]
        try:
            return tuple(private_states(merged(contents(self._components.storage, of_tasks)).operator_states))
        except StateCheckError as error:
            log.warning("Deleting only the directory of an aborted checkpoint; a manifest cannot be read: %s", error)
            return ()

    def _cleaned(self, checkpoint: CheckpointRecord) -> None:
        if not self._components.storage.exists(checkpoint.location):
            confirm_discarded(self._components, checkpoint.checkpoint_id)
        self._ended()

    def _notify(self, aborted: Aborted) -> None:
        checkpoint = aborted.checkpoint
        latest, timestamp = latest_id(self._components), checkpoint.triggered_at
        self._components.notifier.notify_aborted(running(self._components), checkpoint.checkpoint_id, latest, timestamp)
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


def _run_logged(step: Callable[[], None], checkpoint_id: int) -> None:
    try:
        step()
    except Exception:
        log.exception("A step after the abort of checkpoint %s failed", checkpoint_id)
