"""
Completion of a checkpoint, from the acknowledgements to the completed store.

Every acknowledgement is stored in a row, and the last one starts the finalization. A finalizer holds a lease; when the
lease expires, another coordinator repeats the finalization with the same result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Set as AbstractSet
from dataclasses import replace

from airflow_provider_statecheck.checkpoint.aligned.contents import (
    AlignedContent,
    CompletedCheckpoint,
    completed_of,
    contents,
    merged,
    metadata_of,
)
from airflow_provider_statecheck.checkpoint.aligned.rows import (
    AbortScope,
    AcknowledgeAligned,
    AcknowledgedCheckpoint,
    Assessment,
    TakenOver,
)
from airflow_provider_statecheck.checkpoint.aligned.steps import (
    completed_elsewhere,
    delete_manifest,
    delete_merged_manifests,
    finalization_failure,
    write_acknowledged,
)
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.messages import AcknowledgeResult
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle, OperatorState
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    StaleAttemptError,
    StateCheckError,
)
from airflow_provider_statecheck.flink.components import (
    AcknowledgeMessage,
    CheckpointAborter,
    CoordinatorComponents,
    running,
)
from airflow_provider_statecheck.flink.contents import require_whole_union_state, unreferenced_streams

log = logging.getLogger(__name__)

_SUBSUMED = CheckpointException(CheckpointFailureReason.CHECKPOINT_SUBSUMED)


class CheckpointFinalizer:
    """
    Stores the acknowledgements of operators, and finalizes checkpoints.

    A finalization writes the metadata and then adds the checkpoint to the completed store, which completes its row.
    Each step is idempotent; another finalizer repeats the steps after the lease has expired.

    :param aborter: The aborter of checkpoints whose state is rejected, or that cannot be finalized.
    :param ended: Called after a checkpoint or a cleaning has ended; it triggers queued checkpoints.
    """

    def __init__(
        self, components: CoordinatorComponents, aborter: CheckpointAborter, ended: Callable[[], None]
    ) -> None:
        self._components = components
        self.aborter = aborter
        self._ended = ended

    def acknowledge(self, message: AcknowledgeMessage, sender: str) -> bool:
        """
        Store an acknowledgement and finalize the checkpoint after the last one.

        :param sender: The origin of the message, for the log.
        :return: Whether the checkpoint is known.
        :raises CheckpointException: if the checkpoint cannot be completed.
        """
        asked = self._acknowledgement(message)
        assessment = self._assess(asked)
        if assessment.verdict is AcknowledgeResult.SUCCESS and assessment.checkpoint is not None:
            assessment = self._store(message, asked, assessment.checkpoint)
        if assessment.verdict is not AcknowledgeResult.SUCCESS:
            log.info(
                "Acknowledgement of checkpoint %s by %s (%s) is %s",
                message.checkpoint_id,
                message.attempt_id,
                sender,
                assessment.verdict.value,
            )
            self._discard(message.state, assessment)
        return assessment.verdict is not AcknowledgeResult.FORGOTTEN

    def _assess(self, asked: AcknowledgeAligned) -> Assessment:
        while (assessment := self._components.rows.acknowledge(asked)).has_expired:
            self.aborter.expire()
        return assessment

    def _acknowledgement(self, message: AcknowledgeMessage) -> AcknowledgeAligned:
        components = self._components
        return AcknowledgeAligned(
            leader=components.leader,
            checkpoint_id=message.checkpoint_id,
            attempt_id=message.attempt_id,
            state_size_bytes=size_of(message),
            metrics=dict(message.metrics),
            finalizer=components.name,
            lease_seconds=components.lease.total_seconds(),
        )

    def _store(
        self, message: AcknowledgeMessage, asked: AcknowledgeAligned, checkpoint: CheckpointRecord
    ) -> Assessment:
        self._require_whole(message)
        manifest = None
        content = content_of(message)
        if content != AlignedContent():
            manifest = self._components.storage.write_manifest(checkpoint, content)
        assessment = self._components.rows.acknowledge(replace(asked, is_written=True, manifest=manifest))
        if assessment.verdict is not AcknowledgeResult.SUCCESS and manifest is not None:
            self._delete_surplus(manifest, assessment)
        if assessment.finalizing is not None:
            self.finalize(assessment.finalizing)
        return assessment

    def _require_whole(self, message: AcknowledgeMessage) -> None:
        if message.state is None:
            return
        try:
            require_whole_union_state(message.state, message.finished_subtasks)
        except CheckpointException as error:
            self.aborter.abort_one(message.checkpoint_id, error, attempt_id=message.attempt_id)
            raise

    def _delete_surplus(self, manifest: FileStateHandle, assessment: Assessment) -> None:
        is_named = manifest.uri in {a.manifest_uri for a in assessment.acknowledgements}
        if not is_named or _keeps_no_manifest(assessment.checkpoint):
            delete_manifest(self._components.storage, manifest.uri)

    def _discard(self, state: OperatorState | None, assessment: Assessment) -> None:
        """Delete the state of a rejected acknowledgement; a failure is logged."""
        if state is None:
            return
        try:
            rejected = unreferenced_streams([state], self._named_states(assessment))
            if rejected:
                self._components.cleaner.discard_states(rejected)
        except StateCheckError as error:
            # The references of the checkpoint are unknown, so nothing may be deleted.
            log.warning("State of operator %s was rejected and is left to garbage collection: %s", state.uid, error)

    def _named_states(self, assessment: Assessment) -> tuple[OperatorState, ...]:
        found: list[AlignedContent] = []
        for acknowledgement in assessment.acknowledgements:
            try:
                found += contents(self._components.storage, [acknowledgement])
            except CheckpointNotFoundError:
                if assessment.checkpoint is None:
                    raise
                found += self._content_of_ended(assessment.checkpoint)
        return merged(found).operator_states

    def _content_of_ended(self, checkpoint: CheckpointRecord) -> list[AlignedContent]:
        """Return what a checkpoint refers to whose manifests are deleted."""
        if checkpoint.status is CheckpointStatus.ABORTED:
            return []
        return [self._components.storage.read(metadata_of(checkpoint))]

    def try_finalize(self, acknowledged: AcknowledgedCheckpoint) -> None:
        """Finalize a checkpoint and log a failure, which the rows and the future report."""
        try:
            self.finalize(acknowledged)
        except StateCheckError:
            log.warning("Checkpoint %s could not be finalized", acknowledged.checkpoint.checkpoint_id, exc_info=True)

    def take_over(self, *, is_new: bool = False) -> TakenOver:
        """
        Finalize the checkpoints whose finalizer's lease has expired.

        :param is_new: Whether to return the pending checkpoints of earlier leaders.
        """
        components = self._components
        taken = components.rows.take_over(components.leader, new_key(), components.lease.total_seconds(), is_new=is_new)
        for acknowledged in taken.finalizing:
            self.try_finalize(acknowledged)
        return taken

    def finalize(self, acknowledged: AcknowledgedCheckpoint) -> None:
        """
        Complete a checkpoint that is assigned to this finalizer.

        :raises CheckpointException: if the checkpoint cannot be completed and was aborted.
        :raises StaleAttemptError: if another leader has taken over; nothing is deleted.
        """
        components, subsumed = self._components, None
        retained = {c.checkpoint_id for c in components.completed_store.get_all_checkpoints()}
        try:
            checkpoint = write_acknowledged(components.rows, components.leader, components.storage, acknowledged)
            subsumed = components.completed_store.add_checkpoint_and_subsume_oldest(
                checkpoint, components.cleaner, self._ended
            )
        except StaleAttemptError:
            raise
        except Exception as error:
            settled = self._settled(acknowledged.checkpoint, error)
            if settled is None:
                return
            checkpoint = settled
        delete_merged_manifests(components.storage, acknowledged)
        self._announce(checkpoint, subsumed, retained)
        self._ended()

    def _settled(self, record: CheckpointRecord, error: Exception) -> CompletedCheckpoint | None:
        components, failure = self._components, finalization_failure(error)
        # The first write of the transition waits for a commit that is still in progress.
        if self.aborter.abort(
            AbortScope.FINALIZATION,
            failure,
            checkpoint_id=record.checkpoint_id,
            finalizer=record.finalizer,
            lease_until=record.lease_until,
        ):
            self._ended()
            raise failure from error
        found = completed_elsewhere(components.rows, record, error)
        if found is None:
            return None
        components.completed_store.recover()
        return completed_of(found, components.storage.read(metadata_of(found)), metadata_of(found))

    def _announce(
        self, checkpoint: CompletedCheckpoint, subsumed: CompletedCheckpoint | None, retained: AbstractSet[int]
    ) -> None:
        components = self._components
        log.info("Checkpoint %s is complete at %s", checkpoint.checkpoint_id, checkpoint.external_pointer)
        if checkpoint.properties.ends_others:
            self._abort_older(checkpoint)
        components.failure_manager.handle_checkpoint_success(checkpoint.checkpoint_id)
        still = {c.checkpoint_id for c in components.completed_store.get_all_checkpoints()}
        for dropped in sorted(retained - still):
            components.notifier.notify_subsumed(running(components), dropped)
        if checkpoint.properties.ends_others:
            self._notify(checkpoint, subsumed)

    def _abort_older(self, checkpoint: CompletedCheckpoint) -> None:
        try:
            self.aborter.abort(AbortScope.OLDER, _SUBSUMED, checkpoint_id=checkpoint.checkpoint_id)
        except StateCheckError:
            log.exception("Older checkpoints are still pending; the next completed checkpoint aborts them")

    def _notify(self, checkpoint: CompletedCheckpoint, subsumed: CompletedCheckpoint | None) -> None:
        is_discarded = subsumed is not None and subsumed.properties.discard_on_subsumed
        last_subsumed_id = subsumed.checkpoint_id if subsumed is not None and is_discarded else -1
        checkpoint_id, timestamp = checkpoint.checkpoint_id, checkpoint.triggered_at
        self._components.notifier.notify_complete(running(self._components), checkpoint_id, timestamp, last_subsumed_id)
        try:
            self._components.operator_coordinators.notify_checkpoint_complete(checkpoint_id)
        except StateCheckError:
            log.exception("An operator coordinator failed on the completion of checkpoint %s", checkpoint_id)


def _keeps_no_manifest(checkpoint: CheckpointRecord | None) -> bool:
    # The manifests of a checkpoint are deleted with its directory.
    return (
        checkpoint is not None
        and checkpoint.properties.is_savepoint
        and checkpoint.status is CheckpointStatus.COMPLETED
    )


def content_of(message: AcknowledgeMessage) -> AlignedContent:
    """Return the content of the manifest of an acknowledgement; empty for an operator without state."""
    return AlignedContent(operator_states=() if message.state is None else (message.state,))


def size_of(message: AcknowledgeMessage) -> int:
    """Return the size of the acknowledged state in bytes."""
    return 0 if message.state is None else message.state.state_size
