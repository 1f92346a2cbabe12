"""Steps of a coordinator of several operators, with notifications and counted failures."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

from airflow_provider_statecheck.checkpoint.aligned.contents import (
    AlignedContent,
    CompletedCheckpoint,
    contents,
    merged,
    metadata_of,
)
from airflow_provider_statecheck.checkpoint.aligned.leader_steps import LeaderSteps
from airflow_provider_statecheck.checkpoint.aligned.rows import AcknowledgedCheckpoint, Assessment
from airflow_provider_statecheck.checkpoint.failure import CheckpointException
from airflow_provider_statecheck.checkpoint.messages import AcknowledgeResult
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointRequest, CheckpointStatus
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle, OperatorState
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, StateCheckError
from airflow_provider_statecheck.flink.components import AcknowledgeMessage, CoordinatorComponents, running
from airflow_provider_statecheck.flink.contents import require_whole_union_state, unreferenced_streams
from airflow_provider_statecheck.overriding import override

log = logging.getLogger(__name__)


class CoordinatorSteps(LeaderSteps):
    """
    Steps that notify the tasks, count failures, and keep the completed store.

    :param ended: Called after a checkpoint or a cleaning has ended; it triggers queued checkpoints.
    """

    def __init__(self, components: CoordinatorComponents, ended: Callable[[], None]) -> None:
        uids = {task.operator_id: task.uid for task in components.tasks}
        super().__init__(components.rows, components.leader, components.storage, uids, lease=components.lease)
        self._components = components
        self._ended = ended

    def receive(self, message: AcknowledgeMessage, sender: str) -> bool:
        """
        Store the acknowledgement of an operator, and discard its state if it is rejected.

        :param sender: The origin of the message, for the log.
        :return: Whether the checkpoint is known.
        :raises CheckpointException: if the checkpoint cannot be completed.
        """
        asked = self.acknowledgement(
            message.checkpoint_id,
            message.attempt_id,
            state_size_bytes=size_of(message),
            metrics=dict(message.metrics),
        )
        assessment = self.acknowledge(asked, partial(self._write_manifest, message))
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

    def _write_manifest(self, message: AcknowledgeMessage, checkpoint: CheckpointRecord) -> FileStateHandle | None:
        if message.state is None:
            return None
        try:
            require_whole_union_state(message.state, message.finished_subtasks)
        except CheckpointException as error:
            self.abort_one(message.checkpoint_id, error, attempt_id=message.attempt_id)
            raise
        return self._storage.write_manifest(checkpoint, AlignedContent(operator_states=(message.state,)))

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
                found += contents(self._storage, [acknowledgement])
            except CheckpointNotFoundError:
                if assessment.checkpoint is None:
                    raise
                found += self._content_of_ended(assessment.checkpoint)
        return merged(found).operator_states

    def _content_of_ended(self, checkpoint: CheckpointRecord) -> list[AlignedContent]:
        """Return what a checkpoint refers to whose manifests are deleted."""
        if checkpoint.status is CheckpointStatus.ABORTED:
            return []
        return [self._storage.read(metadata_of(checkpoint))]

    @override
    def finalize(self, acknowledged: AcknowledgedCheckpoint) -> bool:
        before = self._retained()
        try:
            is_complete = super().finalize(acknowledged)
        except CheckpointException:
            self._ended()
            raise
        if is_complete:
            self._announce(acknowledged.checkpoint, before)
            self._ended()
        return is_complete

    @override
    def _complete(self, written: CompletedCheckpoint) -> None:
        store, cleaner = self._components.completed_store, self._components.cleaner
        store.add_checkpoint_and_subsume_oldest(written, cleaner, self._ended)

    @override
    def _is_complete_after(self, record: CheckpointRecord, error: Exception) -> bool:
        is_complete = super()._is_complete_after(record, error)
        if is_complete:
            self._components.completed_store.recover()
        return is_complete

    def _retained(self) -> dict[int, CompletedCheckpoint]:
        return {each.checkpoint_id: each for each in self._components.completed_store.get_all_checkpoints()}

    def _announce(self, completed: CheckpointRecord, before: Mapping[int, CompletedCheckpoint]) -> None:
        components, checkpoint_id = self._components, completed.checkpoint_id
        components.failure_manager.handle_checkpoint_success(checkpoint_id)
        dropped = sorted(before.keys() - self._retained().keys())
        for each in dropped:
            components.notifier.notify_subsumed(running(components), each)
        if not completed.properties.ends_others:
            return
        last = before[dropped[-1]] if dropped else None
        is_discarded = last is not None and last.properties.discard_on_subsumed
        last_subsumed_id = last.checkpoint_id if last is not None and is_discarded else -1
        components.notifier.notify_complete(
            running(components), checkpoint_id, completed.triggered_at, last_subsumed_id
        )
        try:
            components.operator_coordinators.notify_checkpoint_complete(checkpoint_id)
        except StateCheckError:
            log.exception("An operator coordinator failed on the completion of checkpoint %s", checkpoint_id)

    @override
    def clean(self) -> None:
        self._components.cleaner.clean(self._ended)

    @override
    def _report(
        self, error: CheckpointException, failed: CheckpointRecord | CheckpointRequest, attempt_id: str = ""
    ) -> None:
        if isinstance(failed, CheckpointRecord):
            self._notify_aborted(failed)
        operators = (task.uid for task in self._components.tasks if attempt_id and task.attempt_id == attempt_id)
        self._components.count_failure(
            error,
            properties=failed.properties,
            checkpoint_id=failed.checkpoint_id,
            attempt_id=attempt_id or None,
            operator=next(operators, ""),
        )

    def _notify_aborted(self, aborted: CheckpointRecord) -> None:
        components, checkpoint_id = self._components, aborted.checkpoint_id
        try:
            latest = components.completed_store.get_latest_checkpoint_id() or -1
            components.notifier.notify_aborted(running(components), checkpoint_id, latest, aborted.triggered_at)
            components.operator_coordinators.notify_checkpoint_aborted(checkpoint_id)
        except Exception:
            log.exception("The abort of checkpoint %s could not be announced", checkpoint_id)


def size_of(message: AcknowledgeMessage) -> int:
    """Return the size of the acknowledged state in bytes."""
    return 0 if message.state is None else message.state.state_size
