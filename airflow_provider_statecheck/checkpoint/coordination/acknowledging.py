"""What becomes of an acknowledgement: bytes before rows, and nothing is deleted that a row names."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from airflow_provider_statecheck.checkpoint.acknowledgements import AcknowledgementRecord
from airflow_provider_statecheck.checkpoint.coordination import aligned_rows
from airflow_provider_statecheck.checkpoint.coordination.aborting import Aborting
from airflow_provider_statecheck.checkpoint.coordination.aligned_rows import Standing, Verdict
from airflow_provider_statecheck.checkpoint.coordination.discard_plan import DiscardPlan
from airflow_provider_statecheck.checkpoint.coordination.finalization import Finalization
from airflow_provider_statecheck.checkpoint.coordination.parts import CoordinatorParts
from airflow_provider_statecheck.checkpoint.coordination.snapshot_contents import contents, merged, not_named_by
from airflow_provider_statecheck.checkpoint.coordination.snapshot_storage import SnapshotContent, StoredFile
from airflow_provider_statecheck.checkpoint.coordination.task_messages import AcknowledgeMessage
from airflow_provider_statecheck.checkpoint.coordination.unanswered_states import require_whole_union_state
from airflow_provider_statecheck.checkpoint.coordination.union_states import metrics_of
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus
from airflow_provider_statecheck.checkpoint.states.operator_state import OperatorState
from airflow_provider_statecheck.checkpoint.store import JobTransaction
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, CoordinatorError, StateCheckError

log = logging.getLogger(__name__)


class Acknowledging:
    """
    Takes the parts of checkpoints that operators have finished.

    :param parts: What the coordinator is made of.
    """

    def __init__(self, parts: CoordinatorParts, aborting: Aborting, finalization: Finalization) -> None:
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
            return aligned_rows.standing(tx, message.checkpoint_id, message.attempt_id)

    def _note_late(self, message: AcknowledgeMessage, standing: Standing) -> None:
        if standing.checkpoint is None or standing.verdict is not Verdict.DISCARDED:
            return
        size = 0 if message.state is None else message.state.state_size
        try:
            with self._parts.transition() as tx:
                aligned_rows.note_late(tx, standing.checkpoint, size)
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
            standing = aligned_rows.standing(tx, message.checkpoint_id, message.attempt_id)
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
        own = aligned_rows.part_of(parts, message.attempt_id)
        if own is None:
            return None
        size = 0 if message.state is None else message.state.state_size
        own = replace(
            own, state_size_bytes=size, full_size_bytes=size, metrics=metrics_of(message), acknowledged_at=tx.now
        )
        if manifest is not None:
            own = replace(own, manifest_uri=manifest.uri, manifest_size=manifest.size, manifest_sha256=manifest.sha256)
        tx.save_acknowledgement(own)
        return aligned_rows.finalize_if_complete(tx, message.checkpoint_id, self._parts.name, self._parts.lease)

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
