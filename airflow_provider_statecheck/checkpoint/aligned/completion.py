"""
Completion of a checkpoint, from the acknowledgements to the completed store.

Every acknowledgement is stored in a row, and the last one starts the finalization. A finalizer holds a lease; when the
lease expires, another coordinator repeats the finalization with the same result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from airflow_provider_statecheck.checkpoint.aligned import retained_checkpoints, transitions
from airflow_provider_statecheck.checkpoint.aligned.abort import CheckpointAborter, running
from airflow_provider_statecheck.checkpoint.aligned.completed_checkpoint import CompletedCheckpoint, DiscardPlan
from airflow_provider_statecheck.checkpoint.aligned.components import CoordinatorComponents
from airflow_provider_statecheck.checkpoint.aligned.notifications import AcknowledgeMessage
from airflow_provider_statecheck.checkpoint.aligned.retained_checkpoints import register_carried
from airflow_provider_statecheck.checkpoint.aligned.snapshot_contents import (
    SnapshotContent,
    StoredFile,
    completed_of,
    contents,
    merged,
    require_whole_union_state,
    unreferenced_streams,
)
from airflow_provider_statecheck.checkpoint.aligned.transitions import Aborted, Assessment, Verdict
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.fencing import ALIGNED_OPERATOR_ID
from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.records import AcknowledgementRecord, CheckpointRecord, CheckpointStatus
from airflow_provider_statecheck.checkpoint.states.handles import OperatorState
from airflow_provider_statecheck.checkpoint.store import JobTransaction
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CommitStateUnknownError,
    CoordinatorError,
    CoordinatorUnavailableError,
    HandleExistsError,
    StaleAttemptError,
    StateCheckError,
)

log = logging.getLogger(__name__)

ENDED_SUBTASKS = "ended_subtasks"
"""The metric for the number of subtasks that had ended."""
ENDED_WITHOUT_STATE = "ended_subtasks_without_state"
"""The metric for the number of subtasks that had ended and reported no state."""


class AcknowledgementHandler:
    """
    Handles the acknowledgements of operators.

    :param components: The components of the coordinator.
    :param aborter: The aborter of checkpoints whose state is rejected.
    :param finalizer: The finalizer of fully acknowledged checkpoints.
    """

    def __init__(
        self, components: CoordinatorComponents, aborter: CheckpointAborter, finalizer: CheckpointFinalizer
    ) -> None:
        self._components = components
        self._aborter = aborter
        self._finalizer = finalizer

    def acknowledge(self, message: AcknowledgeMessage, sender: str) -> bool:
        """
        Store an acknowledgement and finalize the checkpoint after the last one.

        :param sender: The origin of the message, for the log.
        :return: Whether the checkpoint is known.
        :raises CheckpointException: if the checkpoint cannot be completed.
        """
        assessment = self._assess(message)
        message = self._registered(message, assessment)
        if assessment.verdict is Verdict.SUCCESS and assessment.checkpoint is not None:
            assessment = self._store(message, assessment.checkpoint)
        if assessment.verdict is not Verdict.SUCCESS:
            log.info(
                "Acknowledgement of checkpoint %s by %s (%s) is %s",
                message.checkpoint_id,
                message.attempt_id,
                sender,
                assessment.verdict.value,
            )
            self._record_late(message, assessment)
            self._discard(message.state, assessment)
        return assessment.verdict is not Verdict.FORGOTTEN

    def _assess(self, message: AcknowledgeMessage) -> Assessment:
        with self._components.transition() as tx:
            return transitions.assess(tx, message.checkpoint_id, message.attempt_id)

    def _record_late(self, message: AcknowledgeMessage, assessment: Assessment) -> None:
        if assessment.checkpoint is None or assessment.verdict is not Verdict.DISCARDED:
            return
        size = 0 if message.state is None else message.state.state_size
        try:
            with self._components.transition() as tx:
                transitions.record_late(tx, assessment.checkpoint, size)
        except StateCheckError as error:
            log.warning("Late acknowledgement of checkpoint %s was not recorded: %s", message.checkpoint_id, error)

    def _registered(self, message: AcknowledgeMessage, assessment: Assessment) -> AcknowledgeMessage:
        is_savepoint = assessment.checkpoint is not None and assessment.checkpoint.properties.is_savepoint
        if message.state is None or is_savepoint:
            return message
        try:
            states = self._components.registry.register_all([message.state], message.checkpoint_id)
        except CoordinatorError as error:
            if assessment.verdict is Verdict.SUCCESS:
                declined = CheckpointException(CheckpointFailureReason.CHECKPOINT_DECLINED, error)
                self._aborter.abort_one(message.checkpoint_id, declined, attempt_id=message.attempt_id)
                raise declined from error
            log.warning("Shared state of a late acknowledgement was not registered: %s", error)
            return message
        return replace(message, state=states[message.state.operator_id])

    def _store(self, message: AcknowledgeMessage, checkpoint: CheckpointRecord) -> Assessment:
        self._require_whole(message)
        manifest = None
        if message.state is not None:
            content = SnapshotContent(operator_states=(message.state,))
            manifest = self._components.storage.write_manifest(checkpoint, content)
        with self._components.transition() as tx:
            assessment = transitions.assess(tx, message.checkpoint_id, message.attempt_id)
            finalizing = None
            if assessment.verdict is Verdict.SUCCESS:
                finalizing = self._save(tx, message, assessment.acknowledgements, manifest)
        if assessment.verdict is not Verdict.SUCCESS and manifest is not None:
            self._delete_surplus(manifest, assessment.acknowledgements)
        if finalizing is not None:
            self._finalizer.finalize(finalizing)
        return assessment

    def _require_whole(self, message: AcknowledgeMessage) -> None:
        if message.state is None:
            return
        try:
            require_whole_union_state(message.state, message.finished_subtasks)
        except CheckpointException as error:
            self._aborter.abort_one(message.checkpoint_id, error, attempt_id=message.attempt_id)
            raise

    def _save(
        self,
        tx: JobTransaction,
        message: AcknowledgeMessage,
        acknowledgements: Iterable[AcknowledgementRecord],
        manifest: StoredFile | None,
    ) -> CheckpointRecord | None:
        own = transitions.acknowledgement_of(acknowledgements, message.attempt_id)
        if own is None:
            return None
        size = 0 if message.state is None else message.state.state_size
        own = replace(
            own, state_size_bytes=size, full_size_bytes=size, metrics=metrics_of(message), acknowledged_at=tx.now
        )
        if manifest is not None:
            own = replace(own, manifest_uri=manifest.uri, manifest_size=manifest.size, manifest_sha256=manifest.sha256)
        tx.save_acknowledgement(own)
        return transitions.finalize_if_complete(
            tx, message.checkpoint_id, self._components.name, self._components.lease
        )

    def _delete_surplus(self, manifest: StoredFile, acknowledgements: Iterable[AcknowledgementRecord]) -> None:
        if manifest.uri in {a.manifest_uri for a in acknowledgements}:
            return
        try:
            self._components.storage.delete_manifest(manifest.uri)
        except StateCheckError as error:
            log.warning("An unreferenced manifest is left to garbage collection: %s", error)

    def _discard(self, state: OperatorState | None, assessment: Assessment) -> None:
        """Delete the state of a rejected acknowledgement; a failure is logged."""
        if state is None:
            return
        try:
            plan = DiscardPlan(states=unreferenced_streams([state], self._named_states(assessment)))
            if plan.states:
                self._components.cleaner.clean(plan, f"state of operator {state.uid!r} from a rejected acknowledgement")
        except StateCheckError as error:
            # The references of the checkpoint are unknown, so nothing may be deleted.
            log.warning("State of operator %s was rejected and is left to garbage collection: %s", state.uid, error)

    def _named_states(self, assessment: Assessment) -> tuple[OperatorState, ...]:
        found: list[SnapshotContent] = []
        for acknowledgement in assessment.acknowledgements:
            try:
                found += contents(self._components.storage, [acknowledgement])
            except CheckpointNotFoundError:
                # The manifests of an aborted checkpoint are deleted with it; a missing one refers to no state.
                if assessment.checkpoint is None or assessment.checkpoint.status is not CheckpointStatus.ABORTED:
                    raise
        return merged(found).operator_states


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """A checkpoint that was added to the completed store, or a savepoint, which is never added."""

    record: CheckpointRecord
    checkpoint: CompletedCheckpoint
    subsumed: CompletedCheckpoint | None


class CheckpointFinalizer:
    """
    Finalizes checkpoints.

    A finalization writes the metadata, adds the checkpoint to the completed store and updates the rows, in this order.
    Each step is idempotent; another finalizer repeats the steps after the lease has expired.

    :param components: The components of the coordinator.
    :param aborter: The aborter of checkpoints that cannot be finalized.
    :param ended: Called after a checkpoint or a cleaning has ended; it triggers queued checkpoints.
    """

    def __init__(
        self, components: CoordinatorComponents, aborter: CheckpointAborter, ended: Callable[[], None]
    ) -> None:
        self._components = components
        self._aborter = aborter
        self._ended = ended

    def try_finalize(self, record: CheckpointRecord, *, is_taken_over: bool = False) -> None:
        """Finalize a checkpoint and log a failure, which the rows and the future report."""
        try:
            self.finalize(record, is_taken_over=is_taken_over)
        except StateCheckError:
            log.warning("Checkpoint %s could not be finalized", record.checkpoint_id, exc_info=True)

    def take_over(self) -> None:
        """Finalize the checkpoints whose finalizer's lease has expired."""
        with self._components.transition() as tx:
            taken = transitions.take_over(tx, self._components.name, self._components.lease)
        for record in taken:
            self.try_finalize(record, is_taken_over=True)

    def finalize(self, record: CheckpointRecord, *, is_taken_over: bool = False) -> None:
        """
        Complete a checkpoint that is assigned to this finalizer.

        :param is_taken_over: Whether another finalizer may have done some of the steps.
        :raises CheckpointException: if the checkpoint cannot be completed and was aborted.
        :raises StaleAttemptError: if another leader has taken over; nothing is deleted.
        """
        try:
            outcome = self._store(record)
        except StaleAttemptError:
            raise
        except Exception as error:
            is_in_doubt = is_taken_over or _is_unknown(error)
            added = self._added(record) if is_in_doubt else None
            if added is None:
                self._abort_failed(record, error, keeps_bytes=is_in_doubt)
                return
            log.warning(
                "Checkpoint %s is in the completed store, although an error was reported: %s",
                record.checkpoint_id,
                error,
            )
            outcome = added
        aborted = self._complete(outcome)
        if aborted is not None:
            self._announce(outcome, aborted)
        self._ended()

    def _store(self, record: CheckpointRecord) -> _Outcome:
        with self._components.transition() as tx:
            transitions.require_finalizing(tx.checkpoint(record.checkpoint_id), record.checkpoint_id)
            acknowledged = tx.acknowledgements(record.checkpoint_id)
        filled = _filled(record, acknowledged)
        content = merged(contents(self._components.storage, acknowledged))
        require_whole_union_states({state.operator_id: state for state in content.operator_states}, acknowledged)
        metadata = self._components.storage.write_metadata(filled, content)
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
        Return the outcome of a checkpoint that the completed store already contains, ``None`` if it does not.

        :raises StateCheckError: if the store cannot be read; the checkpoint keeps its status for the next finalizer.
        """
        if record.properties.is_savepoint:
            return None
        with self._components.transition() as tx:
            # The transaction waits for the job's row, which an unfinished commit holds. The store is read after it.
            acknowledged = tx.acknowledgements(record.checkpoint_id)
        self._components.completed_store.recover()
        found = self._components.completed_store.get_all_checkpoints()
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
        directories = retained_checkpoints.refresh(self._components)
        register_carried(self._components.registry, checkpoint, directories)
        self._components.registry.checkpoint_completed(checkpoint.checkpoint_id)
        return self._components.completed_store.add_checkpoint_and_subsume_oldest(
            checkpoint, self._components.cleaner, self._ended
        )

    def _complete(self, outcome: _Outcome) -> list[Aborted] | None:
        """Mark a stored checkpoint as completed in the rows; ``None`` if it had already ended."""
        with self._components.transition() as tx:
            found = tx.checkpoint(outcome.record.checkpoint_id)
            if found is None or found.status is not CheckpointStatus.FINALIZING:
                log.info("Checkpoint %s was finalized by another finalizer", outcome.record.checkpoint_id)
                return None
            return transitions.complete(tx, outcome.record)

    def _abort_failed(self, record: CheckpointRecord, error: Exception, *, keeps_bytes: bool) -> None:
        failure = _failure(error)
        with self._components.transition() as tx:
            if not transitions.is_held(tx, record):
                # Another finalizer took over, or the transition was committed although it reported an error.
                log.warning(
                    "Checkpoint %s has another finalizer; this one failed with: %s", record.checkpoint_id, error
                )
                return
            aborted = transitions.abort(tx, record, failure, keeps_bytes=keeps_bytes)
        self._aborter.settle([aborted])
        self._ended()
        raise failure from error

    def _announce(self, outcome: _Outcome, aborted: list[Aborted]) -> None:
        checkpoint, components = outcome.checkpoint, self._components
        log.info("Checkpoint %s is complete at %s", checkpoint.checkpoint_id, checkpoint.external_pointer)
        self._aborter.settle(aborted)
        components.failure_manager.handle_checkpoint_success(checkpoint.checkpoint_id)
        try:
            for dropped in retained_checkpoints.mark_subsumed(components):
                components.notifier.notify_subsumed(running(components), dropped.checkpoint_id)
        except StateCheckError as error:
            log.warning("The rows of subsumed checkpoints could not be updated; the next checkpoint retries: %s", error)
        if transitions.ends_others(outcome.record):
            self._notify(checkpoint, outcome.subsumed)

    def _notify(self, checkpoint: CompletedCheckpoint, subsumed: CompletedCheckpoint | None) -> None:
        is_discarded = subsumed is not None and subsumed.properties.discard_on_subsumed
        last_subsumed_id = subsumed.checkpoint_id if subsumed is not None and is_discarded else -1
        checkpoint_id, timestamp = checkpoint.checkpoint_id, checkpoint.triggered_at
        self._components.notifier.notify_complete(running(self._components), checkpoint_id, timestamp, last_subsumed_id)
        try:
            self._components.operator_coordinators.notify_checkpoint_complete(checkpoint_id)
        except StateCheckError:
            log.exception("An operator coordinator failed on the completion of checkpoint %s", checkpoint_id)


def _filled(record: CheckpointRecord, acknowledged: list[AcknowledgementRecord]) -> CheckpointRecord:
    """Return the completed row, derived from rows only: every finalizer writes the same one."""
    times = [a.acknowledged_at for a in acknowledged if a.acknowledged_at is not None]
    return replace(
        record,
        status=CheckpointStatus.COMPLETED,
        finalizer=None,
        lease_until=None,
        completed_at=max(times, default=record.triggered_at),
        state_size_bytes=sum(a.state_size_bytes for a in acknowledged),
        counts={"operators": sum(_has_state(a) for a in acknowledged)},
    )


def _has_state(acknowledgement: AcknowledgementRecord) -> bool:
    return acknowledgement.manifest_uri is not None and acknowledgement.operator_id != ALIGNED_OPERATOR_ID


def _is_unknown(error: BaseException) -> bool:
    return isinstance(error, CommitStateUnknownError | CoordinatorUnavailableError | HandleExistsError)


def _failure(error: Exception) -> CheckpointException:
    if isinstance(error, CheckpointException):
        return error
    return CheckpointException(CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE, error)


def metrics_of(message: AcknowledgeMessage) -> dict[str, int]:
    """Return the metrics of an acknowledgement, with the numbers of ended subtasks that a finalizer needs."""
    ended = message.finished_subtasks
    if message.state is None or not ended:
        return dict(message.metrics)
    missing = len(ended - message.state.subtask_states.keys())
    return dict(message.metrics) | {ENDED_SUBTASKS: len(ended), ENDED_WITHOUT_STATE: missing}


def require_whole_union_states(
    states: Mapping[OperatorId, OperatorState], acknowledgements: Iterable[AcknowledgementRecord]
) -> None:
    """
    Require the union state of every operator to be complete, unless all of its subtasks have ended.

    :raises CheckpointException: ``CHECKPOINT_DECLINED_TASK_CLOSING`` if union state of an ended subtask is missing.
    """
    for acknowledgement in acknowledgements:
        state = states.get(acknowledgement.operator_id)
        if state is not None and acknowledgement.metrics.get(ENDED_WITHOUT_STATE, 0):
            require_whole_union_state(state, _ended(state, acknowledgement))


def _ended(state: OperatorState, acknowledgement: AcknowledgementRecord) -> frozenset[int]:
    # The metrics contain numbers only; the indexes of subtasks that ended with state do not affect the check.
    absent = [i for i in range(state.parallelism) if i not in state.subtask_states]
    present = sorted(state.subtask_states)
    without_state = absent[: acknowledgement.metrics[ENDED_WITHOUT_STATE]]
    with_state = max(0, acknowledgement.metrics.get(ENDED_SUBTASKS, 0) - len(without_state))
    return frozenset((*without_state, *present[:with_state]))
