"""Aborting a checkpoint: its files are discarded and its tasks notified."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial

from airflow_provider_statecheck.checkpoint.aligned import transitions
from airflow_provider_statecheck.checkpoint.aligned.completed_checkpoint import DiscardPlan, private_states
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


class Aborting:
    """
    Ends checkpoints that will never be complete.

    :param parts: What the coordinator is made of.
    :param ended: Is called when something has come to an end, so that what waits can go on.
    """

    def __init__(self, parts: CoordinatorComponents, ended: Callable[[], None]) -> None:
        self._parts = parts
        self._ended = ended

    def abort_one(self, checkpoint_id: int, error: CheckpointException, *, attempt_id: str | None = None) -> bool:
        """
        Abort a checkpoint if it is pending.

        :param attempt_id: Whose fault it is, ``None`` for the coordinator's own.
        :return: Whether it was.
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
        """Abort the pending checkpoints that are chosen, in one transition, and see to what follows."""
        with self._parts.transition() as tx:
            aborted = [transitions.abort(tx, c, error, attempt_id=attempt_id) for c in choose(tx)]
        self.settle(aborted)
        return aborted

    def settle(self, aborted: Iterable[Aborted]) -> None:
        """See to what follows, when the rows say that checkpoints are aborted; nothing of it can undo that."""
        for each in aborted:
            log.info("Checkpoint %s is aborted: %s", each.checkpoint.checkpoint_id, each.error)
            for step in (self._discard, self._notify):
                _carefully(partial(step, each), each.checkpoint.checkpoint_id)
            self._count(each)

    def clean(self, checkpoint: CheckpointRecord, parts: Iterable[AcknowledgementRecord]) -> None:
        """Delete the bytes of an aborted checkpoint, in the background."""
        states = () if checkpoint.discarded_at is not None else self._states(parts)
        plan = DiscardPlan(states=states, location=checkpoint.location)
        self._parts.cleaner.clean(plan, f"checkpoint {checkpoint.checkpoint_id}", partial(self._cleaned, checkpoint))

    def _discard(self, aborted: Aborted) -> None:
        checkpoint = aborted.checkpoint
        if checkpoint.discarded_at is not None:
            log.error(
                "Checkpoint %s may be in the completed store; its bytes stay at %s, delete them by hand if it is not",
                checkpoint.checkpoint_id,
                checkpoint.location,
            )
            return
        try:
            self.clean(checkpoint, aborted.parts)
        except CoordinatorError as error:
            log.warning("The bytes of checkpoint %s stay for maintenance: %s", checkpoint.checkpoint_id, error)

    def _states(self, parts: Iterable[AcknowledgementRecord]) -> tuple[StreamStateHandle, ...]:
        # The coordinator's own part only refers to what others hold.
        theirs = [part for part in parts if part.operator_id != ALIGNED_OPERATOR_ID]
        try:
            return tuple(private_states(merged(contents(self._parts.storage, theirs)).operator_states))
        except StateCheckError as error:
            log.warning("What was acknowledged of an aborted checkpoint cannot be read, its directory goes: %s", error)
            return ()

    def _cleaned(self, checkpoint: CheckpointRecord) -> None:
        if not self._parts.storage.exists(checkpoint.location):
            confirm_discarded(self._parts, checkpoint.checkpoint_id)
        self._ended()

    def _notify(self, aborted: Aborted) -> None:
        checkpoint = aborted.checkpoint
        latest, timestamp = latest_id(self._parts), checkpoint.triggered_at
        self._parts.notifier.notify_aborted(running(self._parts), checkpoint.checkpoint_id, latest, timestamp)
        self._parts.operator_coordinators.notify_checkpoint_aborted(checkpoint.checkpoint_id)

    def _count(self, aborted: Aborted) -> None:
        own = transitions.part_of(aborted.parts, aborted.attempt_id) if aborted.attempt_id is not None else None
        tasks = {task.operator_id: task.uid for task in self._parts.tasks}
        self._parts.count_failure(
            aborted.error,
            properties=aborted.checkpoint.properties,
            checkpoint_id=aborted.checkpoint.checkpoint_id,
            attempt_id=aborted.attempt_id,
            operator="" if own is None else tasks.get(own.operator_id, own.operator_id),
        )


def running(parts: CoordinatorComponents) -> list[ExecutionTask]:
    """Return the tasks that can be told something."""
    return [task for task in parts.tasks if task.status is ExecutionStatus.RUNNING]


def _carefully(step: Callable[[], None], checkpoint_id: int) -> None:
    try:
        step()
    except Exception:
        log.exception("What follows the abort of checkpoint %s failed", checkpoint_id)
