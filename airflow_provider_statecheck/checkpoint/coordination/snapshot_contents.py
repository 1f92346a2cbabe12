"""What the acknowledged parts of a checkpoint hold together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from airflow_provider_statecheck.checkpoint.acknowledgements import AcknowledgementRecord
from airflow_provider_statecheck.checkpoint.coordination.completed_checkpoint import CompletedCheckpoint
from airflow_provider_statecheck.checkpoint.coordination.discard_plan import location_of, private_states
from airflow_provider_statecheck.checkpoint.coordination.plan import CheckpointPlan, ExecutionTask
from airflow_provider_statecheck.checkpoint.coordination.snapshot_storage import (
    SnapshotContent,
    SnapshotStorage,
    StoredFile,
)
from airflow_provider_statecheck.checkpoint.coordination.unanswered_states import unanswered_states
from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.states.handles import ByteStreamStateHandle, StreamStateHandle
from airflow_provider_statecheck.checkpoint.states.operator_state import MasterState, OperatorState
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, CoordinatorError


def manifest_of(part: AcknowledgementRecord) -> StoredFile | None:
    """Return where the state of a part is described, ``None`` for a part without state."""
    if part.manifest_uri is None:
        return None
    return StoredFile(uri=part.manifest_uri, size=part.manifest_size, sha256=part.manifest_sha256)


def contents(storage: SnapshotStorage, parts: Iterable[AcknowledgementRecord]) -> Iterator[SnapshotContent]:
    """
    Read what the parts of a checkpoint hold.

    :raises StorageError: if a manifest cannot be read.
    :raises CheckpointNotFoundError: if one is missing.
    """
    for part in sorted(parts, key=lambda p: p.operator_id):
        manifest = manifest_of(part)
        if manifest is not None:
            yield storage.read(manifest)


def merged(found: Iterable[SnapshotContent]) -> SnapshotContent:
    """Put the parts together; an operator may have a state of its tasks and one of its coordinator."""
    states: dict[OperatorId, OperatorState] = {}
    masters: list[MasterState] = []
    for content in found:
        masters += content.master_states
        for state in content.operator_states:
            states[state.operator_id] = _joined(states.get(state.operator_id), state)
    ordered = tuple(states[operator_id] for operator_id in sorted(states))
    return SnapshotContent(operator_states=ordered, master_states=tuple(masters))


def _joined(one: OperatorState | None, other: OperatorState) -> OperatorState:
    if one is None:
        return other
    base, added = (other, one) if other.subtask_states or other.is_fully_finished else (one, other)
    return replace(base, coordinator_state=base.coordinator_state or added.coordinator_state)


def coordinator_content(
    checkpoint: CheckpointRecord,
    plan: CheckpointPlan,
    restored: Mapping[OperatorId, OperatorState],
    coordinators: Mapping[OperatorId, bytes | None],
    masters: Sequence[MasterState],
) -> SnapshotContent:
    """
    Return the coordinator's own part: what nobody else answers for.

    It names the operators that answer too, so that one without state is in the checkpoint.

    :param restored: With what an operator would be restored that has not begun.
    :param coordinators: What the coordinators of operators saved.
    :raises CoordinatorError: if one of them saved state of an operator that the job does not have.
    """
    answering = {task.operator_id: _without_subtasks(task) for task in plan.tasks_to_wait_for}
    states = answering | unanswered_states(plan, restored)
    tasks = {task.operator_id: task for task in _tasks_of(plan)}
    for operator_id, data in coordinators.items():
        if data is None:
            continue
        if operator_id not in tasks and operator_id not in states:
            raise _unknown_operator(operator_id, tasks.values())
        handle = ByteStreamStateHandle(f"coordinator-{checkpoint.checkpoint_id}-{operator_id}", data)
        base = states.get(operator_id) or _without_subtasks(tasks[operator_id])
        states[operator_id] = replace(base, coordinator_state=handle)
    ordered = tuple(states[operator_id] for operator_id in sorted(states))
    return SnapshotContent(operator_states=ordered, master_states=tuple(masters))


def _tasks_of(plan: CheckpointPlan) -> tuple[ExecutionTask, ...]:
    told = (*plan.tasks_to_trigger, *plan.tasks_to_commit_to)
    return (*told, *plan.finished_tasks, *plan.tasks_to_wait_for, *plan.not_started)


def _unknown_operator(operator_id: OperatorId, tasks: Iterable[ExecutionTask]) -> CoordinatorError:
    known = ", ".join(f"{task.uid!r} (id {task.operator_id})" for task in tasks)
    return CoordinatorError(
        f"Expected the coordinator that saved state to be that of an operator of the job, {known}, found that of operator "
        f"{operator_id}, whose state the checkpoint would lose; give the coordinator the id of its operator.",
        operator_id=operator_id,
    )


def _without_subtasks(task: ExecutionTask) -> OperatorState:
    return OperatorState(
        operator_id=task.operator_id,
        uid=task.uid,
        name=task.name,
        parallelism=task.parallelism,
        max_parallelism=task.max_parallelism,
    )


def completed_of(checkpoint: CheckpointRecord, content: SnapshotContent, metadata: StoredFile) -> CompletedCheckpoint:
    """Return a checkpoint as a restore needs it."""
    return CompletedCheckpoint(
        job_id=checkpoint.job_id,
        checkpoint_id=checkpoint.checkpoint_id,
        triggered_at=checkpoint.triggered_at,
        completed_at=checkpoint.completed_at or checkpoint.triggered_at,
        operator_states={state.operator_id: state for state in content.operator_states},
        master_states=content.master_states,
        properties=checkpoint.properties,
        external_pointer=checkpoint.location,
        metadata_uri=metadata.uri,
        metadata_size=metadata.size,
        metadata_sha256=metadata.sha256,
        checkpointed_size=checkpoint.state_size_bytes,
    )


def metadata_of(checkpoint: CheckpointRecord) -> StoredFile:
    """
    Return where the metadata of a completed checkpoint are.

    :raises CheckpointNotFoundError: if there are none.
    """
    if checkpoint.metadata_uri is None:
        raise CheckpointNotFoundError(
            f"Expected the metadata of checkpoint {checkpoint.checkpoint_id}, found none; it is {checkpoint.status.value}."
        )
    return StoredFile(uri=checkpoint.metadata_uri, size=checkpoint.metadata_size, sha256=checkpoint.metadata_sha256)


def not_named_by(states: Iterable[OperatorState], kept: Iterable[OperatorState]) -> tuple[StreamStateHandle, ...]:
    """Return the private streams of some states that others do not lead to as well."""
    named = {location_of(stream) for stream in private_states(kept)}
    return tuple(stream for stream in private_states(states) if location_of(stream) not in named)
