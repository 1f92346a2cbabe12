"""
From acknowledgements to a completed checkpoint.

How many subtasks ended without leaving any is kept with the acknowledgement, so that every finalizer finds the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from airflow_provider_statecheck.checkpoint.aligned import retained_checkpoints, transitions
from airflow_provider_statecheck.checkpoint.aligned.abort import Aborting, running
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
    not_named_by,
    require_whole_union_state,
)
from airflow_provider_statecheck.checkpoint.aligned.transitions import Aborted, Standing, Verdict
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

ENDED_SUBTASKS = "ended_subtasks"
"""The metric of how many subtasks had ended."""
ENDED_WITHOUT_STATE = "ended_subtasks_without_state"


def metrics_of(message: AcknowledgeMessage) -> dict[str, int]:
    """Return the metrics of a part with what a finalizer has to know of ended subtasks."""
    ended = message.finished_subtasks
    if message.state is None or not ended:
        return dict(message.metrics)
    missing = len(ended - message.state.subtask_states.keys())
    return dict(message.metrics) | {ENDED_SUBTASKS: len(ended), ENDED_WITHOUT_STATE: missing}


def require_whole_union_states(
    states: Mapping[OperatorId, OperatorState], parts: Iterable[AcknowledgementRecord]
) -> None:
    """
    Refuse a checkpoint in which a part of a union state is missing because some, not all subtasks have ended.

    :raises CheckpointException: ``CHECKPOINT_DECLINED_TASK_CLOSING`` for such a one.
    """
    for part in parts:
        state = states.get(part.operator_id)
        if state is not None and part.metrics.get(ENDED_WITHOUT_STATE, 0):
            require_whole_union_state(state, _ended(state, part))


def _ended(state: OperatorState, part: AcknowledgementRecord) -> frozenset[int]:
    # Which ones ended with state is not told, and does not matter; as many as said have to be missing.
    absent = [i for i in range(state.parallelism) if i not in state.subtask_states]
    present = sorted(state.subtask_states)
    without = absent[: part.metrics[ENDED_WITHOUT_STATE]]
    left = max(0, part.metrics.get(ENDED_SUBTASKS, 0) - len(without))
    return frozenset((*without, *present[:left]))


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

    def __init__(self, parts: CoordinatorComponents, aborting: Aborting, ended: Callable[[], None]) -> None:
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
            taken = transitions.take_over(tx, self._parts.name, self._parts.lease)
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
            transitions.require_finalizing(tx.checkpoint(record.checkpoint_id), record.checkpoint_id)
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
        directories = retained_checkpoints.refresh(self._parts)
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
            return transitions.complete(tx, outcome.record)

    def _give_up(self, record: CheckpointRecord, error: Exception, *, keeps_bytes: bool) -> None:
        failure = _failure(error)
        with self._parts.transition() as tx:
            if not transitions.is_held(tx, record):
                # Somebody took over and is answerable for it now, or the transition that seemed to fail had its effect.
                log.warning("Checkpoint %s was finalized by another, here it failed: %s", record.checkpoint_id, error)
                return
            aborted = transitions.abort(tx, record, failure, keeps_bytes=keeps_bytes)
        self._aborting.settle([aborted])
        self._ended()
        raise failure from error

    def _announce(self, outcome: _Outcome, aborted: list[Aborted]) -> None:
        checkpoint, parts = outcome.checkpoint, self._parts
        log.info("Checkpoint %s is complete at %s", checkpoint.checkpoint_id, checkpoint.external_pointer)
        self._aborting.settle(aborted)
        parts.failure_manager.handle_checkpoint_success(checkpoint.checkpoint_id)
        try:
            for dropped in retained_checkpoints.mark_subsumed(parts):
                parts.notifier.notify_subsumed(running(parts), dropped.checkpoint_id)
        except StateCheckError as error:
            log.warning("Which checkpoints are subsumed is not said in their rows yet: %s", error)
        if transitions.ends_others(outcome.record):
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


class Acknowledging:
    """
    Takes the parts of checkpoints that operators have finished.

    :param parts: What the coordinator is made of.
    """

    def __init__(self, parts: CoordinatorComponents, aborting: Aborting, finalization: Finalization) -> None:
        self._parts = parts
        self._aborting = aborting
        self._finalization = finalization

    def acknowledge(self, message: AcknowledgeMessage, sender: str) -> bool:
        """
        Take a part; the one that makes a checkpoint complete also finalizes it.

        :return: Whether the checkpoint is known.
        :raises CheckpointException: if the checkpoint cannot be completed.
        """
        standing = self._standing(message)
        message = self._registered(message, standing)
        if standing.verdict is Verdict.SUCCESS and standing.checkpoint is not None:
            standing = self._store(message, standing.checkpoint)
        if standing.verdict is not Verdict.SUCCESS:
            log.info(
                "Acknowledgement of checkpoint %s by %s (%s) is %s",
                message.checkpoint_id,
                message.attempt_id,
                sender,
                standing.verdict.value,
            )
            self._note_late(message, standing)
            self._discard(message.state, standing)
        return standing.verdict is not Verdict.FORGOTTEN

    def _standing(self, message: AcknowledgeMessage) -> Standing:
        with self._parts.transition() as tx:
            return transitions.standing(tx, message.checkpoint_id, message.attempt_id)

    def _note_late(self, message: AcknowledgeMessage, standing: Standing) -> None:
        if standing.checkpoint is None or standing.verdict is not Verdict.DISCARDED:
            return
        size = 0 if message.state is None else message.state.state_size
        try:
            with self._parts.transition() as tx:
                transitions.note_late(tx, standing.checkpoint, size)
        except StateCheckError as error:
            log.warning("How late checkpoint %s was acknowledged is not kept: %s", message.checkpoint_id, error)

    def _registered(self, message: AcknowledgeMessage, standing: Standing) -> AcknowledgeMessage:
        is_savepoint = standing.checkpoint is not None and standing.checkpoint.properties.is_savepoint
        if message.state is None or is_savepoint:
            return message
        try:
            states = self._parts.registry.register_all([message.state], message.checkpoint_id)
        except CoordinatorError as error:
            if standing.verdict is Verdict.SUCCESS:
                declined = CheckpointException(CheckpointFailureReason.CHECKPOINT_DECLINED, error)
                self._aborting.abort_one(message.checkpoint_id, declined, attempt_id=message.attempt_id)
                raise declined from error
            log.warning("Shared state of a late acknowledgement is not registered: %s", error)
            return message
        return replace(message, state=states[message.state.operator_id])

    def _store(self, message: AcknowledgeMessage, checkpoint: CheckpointRecord) -> Standing:
        self._require_whole(message)
        manifest = None
        if message.state is not None:
            content = SnapshotContent(operator_states=(message.state,))
            manifest = self._parts.storage.write_manifest(checkpoint, content)
        with self._parts.transition() as tx:
            standing = transitions.standing(tx, message.checkpoint_id, message.attempt_id)
            finalizing = None
            if standing.verdict is Verdict.SUCCESS:
                finalizing = self._save(tx, message, standing.parts, manifest)
        if standing.verdict is not Verdict.SUCCESS and manifest is not None:
            self._delete_surplus(manifest, standing.parts)
        if finalizing is not None:
            self._finalization.finalize(finalizing)
        return standing

    def _require_whole(self, message: AcknowledgeMessage) -> None:
        if message.state is None:
            return
        try:
            require_whole_union_state(message.state, message.finished_subtasks)
        except CheckpointException as error:
            self._aborting.abort_one(message.checkpoint_id, error, attempt_id=message.attempt_id)
            raise

    def _save(
        self,
        tx: JobTransaction,
        message: AcknowledgeMessage,
        parts: Iterable[AcknowledgementRecord],
        manifest: StoredFile | None,
    ) -> CheckpointRecord | None:
        own = transitions.part_of(parts, message.attempt_id)
        if own is None:
            return None
        size = 0 if message.state is None else message.state.state_size
        own = replace(
            own, state_size_bytes=size, full_size_bytes=size, metrics=metrics_of(message), acknowledged_at=tx.now
        )
        if manifest is not None:
            own = replace(own, manifest_uri=manifest.uri, manifest_size=manifest.size, manifest_sha256=manifest.sha256)
        tx.save_acknowledgement(own)
        return transitions.finalize_if_complete(tx, message.checkpoint_id, self._parts.name, self._parts.lease)

    def _delete_surplus(self, manifest: StoredFile, parts: Iterable[AcknowledgementRecord]) -> None:
        if manifest.uri in {part.manifest_uri for part in parts}:
            return
        try:
            self._parts.storage.delete_manifest(manifest.uri)
        except StateCheckError as error:
            log.warning("A manifest that no checkpoint names stays for the sweep: %s", error)

    def _discard(self, state: OperatorState | None, standing: Standing) -> None:
        """Delete what came in vain; whoever sent it is never told that this failed."""
        if state is None:
            return
        try:
            plan = DiscardPlan(states=not_named_by([state], self._kept(standing)))
            if plan.states:
                self._parts.cleaner.clean(plan, f"state of operator {state.uid!r} that nobody waits for")
        except StateCheckError as error:
            # What the checkpoint names is not known, so nothing is deleted.
            log.warning("State of operator %s that nobody waits for stays for the sweep: %s", state.uid, error)

    def _kept(self, standing: Standing) -> tuple[OperatorState, ...]:
        found: list[SnapshotContent] = []
        for part in standing.parts:
            try:
                found += contents(self._parts.storage, [part])
            except CheckpointNotFoundError:
                # What was acknowledged of an aborted checkpoint goes with it; a manifest that is gone names nothing.
                if standing.checkpoint is None or standing.checkpoint.status is not CheckpointStatus.ABORTED:
                    raise
        return merged(found).operator_states
