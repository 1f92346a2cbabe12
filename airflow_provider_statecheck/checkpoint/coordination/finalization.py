"""Making a checkpoint that everybody has acknowledged a completed one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from airflow_provider_statecheck.checkpoint.acknowledgements import AcknowledgementRecord
from airflow_provider_statecheck.checkpoint.coordination import aligned_rows, retained
from airflow_provider_statecheck.checkpoint.coordination.aborting import Aborting, running
from airflow_provider_statecheck.checkpoint.coordination.aligned_rows import Aborted
from airflow_provider_statecheck.checkpoint.coordination.carried_state import register_carried
from airflow_provider_statecheck.checkpoint.coordination.completed_checkpoint import CompletedCheckpoint
from airflow_provider_statecheck.checkpoint.coordination.leadership import ALIGNED_OPERATOR_ID
from airflow_provider_statecheck.checkpoint.coordination.parts import CoordinatorParts
from airflow_provider_statecheck.checkpoint.coordination.snapshot_contents import completed_of, contents, merged
from airflow_provider_statecheck.checkpoint.coordination.union_states import require_whole_union_states
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus
from airflow_provider_statecheck.exceptions import (
    CommitStateUnknownError,
    CoordinatorUnavailableError,
    HandleExistsError,
    StaleAttemptError,
    StateCheckError,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """A checkpoint that is in the completed store, or has no need to be."""

    record: CheckpointRecord
    checkpoint: CompletedCheckpoint
    subsumed: CompletedCheckpoint | None


class Finalization:
    """
    Writes the metadata of checkpoints, adds them to the completed store and says so in the rows, in this order.

    Each step may be repeated by whoever takes over when the lease of one finalizer has ended.

    :param parts: What the coordinator is made of.
    :param aborting: What is done with a checkpoint that cannot be finalized.
    :param ended: Is called when something has come to an end, so that what waits can go on.
    """

    def __init__(self, parts: CoordinatorParts, aborting: Aborting, ended: Callable[[], None]) -> None:
        self._parts = parts
        self._aborting = aborting
        self._ended = ended

    def try_finalize(self, record: CheckpointRecord, *, is_taken_over: bool = False) -> None:
        """Finalize a checkpoint; what fails is known by its rows and future, so nobody here is told."""
        try:
            self.finalize(record, is_taken_over=is_taken_over)
        except StateCheckError:
            log.warning("Checkpoint %s could not be finalized", record.checkpoint_id, exc_info=True)

    def take_over(self) -> None:
        """Finalize the checkpoints whose finalizer is silent."""
        with self._parts.transition() as tx:
            taken = aligned_rows.take_over(tx, self._parts.name, self._parts.lease)
        for record in taken:
            self.try_finalize(record, is_taken_over=True)

    def finalize(self, record: CheckpointRecord, *, is_taken_over: bool = False) -> None:
        """
        Complete a checkpoint that was given to this finalizer.

        :param is_taken_over: Whether another one had it before, who may have done part of it.
        :raises CheckpointException: if it cannot be completed; it is aborted then.
        :raises StaleAttemptError: if another leads; nothing is deleted then.
        """
        try:
            outcome = self._store(record)
        except StaleAttemptError:
            raise
        except Exception as error:
            is_in_doubt = is_taken_over or _is_unknown(error)
            added = self._added(record) if is_in_doubt else None
            if added is None:
                self._give_up(record, error, keeps_bytes=is_in_doubt)
                return
            log.warning("Checkpoint %s is in the completed store although it failed: %s", record.checkpoint_id, error)
            outcome = added
        aborted = self._complete(outcome)
        if aborted is not None:
            self._announce(outcome, aborted)
        self._ended()

    def _store(self, record: CheckpointRecord) -> _Outcome:
        with self._parts.transition() as tx:
            aligned_rows.require_finalizing(tx.checkpoint(record.checkpoint_id), record.checkpoint_id)
            acknowledged = tx.acknowledgements(record.checkpoint_id)
        filled = _filled(record, acknowledged)
        content = merged(contents(self._parts.storage, acknowledged))
        require_whole_union_states({state.operator_id: state for state in content.operator_states}, acknowledged)
        metadata = self._parts.storage.write_metadata(filled, content)
        filled = replace(
            filled,
            metadata_uri=metadata.uri,
            metadata_size=metadata.size,
            metadata_sha256=metadata.sha256,
            full_size_bytes=sum(state.state_size for state in content.operator_states),
        )
        checkpoint = completed_of(filled, content, metadata)
        subsumed = None if checkpoint.properties.is_savepoint else self._add(checkpoint)
        return _Outcome(record=filled, checkpoint=checkpoint, subsumed=subsumed)

    def _added(self, record: CheckpointRecord) -> _Outcome | None:
        """
        Return a checkpoint that is in the completed store whatever was heard of it.

        :raises StateCheckError: if nobody can tell; it stays as it is then, and whoever takes over looks again.
        """
        if record.properties.is_savepoint:
            return None
        with self._parts.transition() as tx:
            # A commit that is still under way holds the job's row, so the store is looked at after it.
            acknowledged = tx.acknowledgements(record.checkpoint_id)
        self._parts.completed_store.recover()
        found = self._parts.completed_store.get_all_checkpoints()
        checkpoint = next((c for c in found if c.checkpoint_id == record.checkpoint_id), None)
        if checkpoint is None:
            return None
        filled = replace(
            _filled(record, acknowledged),
            metadata_uri=checkpoint.metadata_uri,
            metadata_size=checkpoint.metadata_size,
            metadata_sha256=checkpoint.metadata_sha256,
            full_size_bytes=sum(state.state_size for state in checkpoint.operator_states.values()),
        )
        return _Outcome(record=filled, checkpoint=checkpoint, subsumed=None)

    def _add(self, checkpoint: CompletedCheckpoint) -> CompletedCheckpoint | None:
        directories = retained.refresh(self._parts)
        register_carried(self._parts.registry, checkpoint, directories)
        self._parts.registry.checkpoint_completed(checkpoint.checkpoint_id)
        return self._parts.completed_store.add_checkpoint_and_subsume_oldest(
            checkpoint, self._parts.cleaner, self._ended
        )

    def _complete(self, outcome: _Outcome) -> list[Aborted] | None:
        """Say in the rows that a checkpoint is complete; ``None`` if it had ended. Whatever fails, it is in the store."""
        with self._parts.transition() as tx:
            found = tx.checkpoint(outcome.record.checkpoint_id)
            if found is None or found.status is not CheckpointStatus.FINALIZING:
                log.info("Checkpoint %s was finalized by another", outcome.record.checkpoint_id)
                return None
            return aligned_rows.complete(tx, outcome.record)

    def _give_up(self, record: CheckpointRecord, error: Exception, *, keeps_bytes: bool) -> None:
        failure = _failure(error)
        with self._parts.transition() as tx:
            if not aligned_rows.is_held(tx, record):
                # Somebody took over and is answerable for it now, or the transition that seemed to fail had its effect.
                log.warning("Checkpoint %s was finalized by another, here it failed: %s", record.checkpoint_id, error)
                return
            aborted = aligned_rows.abort(tx, record, failure, keeps_bytes=keeps_bytes)
        self._aborting.settle([aborted])
        self._ended()
        raise failure from error

    def _announce(self, outcome: _Outcome, aborted: list[Aborted]) -> None:
        checkpoint, parts = outcome.checkpoint, self._parts
        log.info("Checkpoint %s is complete at %s", checkpoint.checkpoint_id, checkpoint.external_pointer)
        self._aborting.settle(aborted)
        parts.failure_manager.handle_checkpoint_success(checkpoint.checkpoint_id)
        try:
            for dropped in retained.mark_subsumed(parts):
                parts.notifier.notify_subsumed(running(parts), dropped.checkpoint_id)
        except StateCheckError as error:
            log.warning("Which checkpoints are subsumed is not said in their rows yet: %s", error)
        if aligned_rows.ends_others(outcome.record):
            self._notify(checkpoint, outcome.subsumed)

    def _notify(self, checkpoint: CompletedCheckpoint, subsumed: CompletedCheckpoint | None) -> None:
        is_discarded = subsumed is not None and subsumed.properties.discard_on_subsumed
        last_subsumed_id = subsumed.checkpoint_id if subsumed is not None and is_discarded else -1
        number, timestamp = checkpoint.checkpoint_id, checkpoint.triggered_at
        self._parts.notifier.notify_complete(running(self._parts), number, timestamp, last_subsumed_id)
        try:
            self._parts.operator_coordinators.notify_checkpoint_complete(number)
        except StateCheckError:
            log.exception("The coordinator of an operator could not take note that checkpoint %s is complete", number)


def _filled(record: CheckpointRecord, acknowledged: list[AcknowledgementRecord]) -> CheckpointRecord:
    """Return the row as it will be; all of it follows from rows, so that every finalizer writes the same."""
    times = [part.acknowledged_at for part in acknowledged if part.acknowledged_at is not None]
    return replace(
        record,
        status=CheckpointStatus.COMPLETED,
        finalizer=None,
        lease_until=None,
        completed_at=max(times, default=record.triggered_at),
        state_size_bytes=sum(part.state_size_bytes for part in acknowledged),
        counts={"operators": sum(_has_state(part) for part in acknowledged)},
    )


def _has_state(part: AcknowledgementRecord) -> bool:
    return part.manifest_uri is not None and part.operator_id != ALIGNED_OPERATOR_ID


def _is_unknown(error: BaseException) -> bool:
    return isinstance(error, CommitStateUnknownError | CoordinatorUnavailableError | HandleExistsError)


def _failure(error: Exception) -> CheckpointException:
    if isinstance(error, CheckpointException):
        return error
    return CheckpointException(CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE, error)
