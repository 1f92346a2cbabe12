"""Contents of an aligned checkpoint, gathered from acknowledgements, and the storage they go to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import chain
from typing import Protocol

from airflow_provider_statecheck.checkpoint.aligned.completed_checkpoint import (
    CompletedCheckpoint,
    location_of,
    private_states,
)
from airflow_provider_statecheck.checkpoint.aligned.plan import CheckpointPlan, ExecutionTask
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.records import AcknowledgementRecord, CheckpointRecord
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    DistributionMode,
    MasterState,
    OperatorState,
    OperatorStateHandle,
    StreamStateHandle,
)
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, CoordinatorError


def unanswered_states(
    plan: CheckpointPlan, restored: Mapping[OperatorId, OperatorState]
) -> dict[OperatorId, OperatorState]:
    """
    Return the states that the coordinator itself adds to a checkpoint.

    An operator that ended is named as fully finished; one that has not begun keeps, by reference, what it would be restored
    with, or has no state at all.

    :param plan: Who takes part in the checkpoint.
    :param restored: What the job was restored with, by operator.
    """
    finished = {t.operator_id: t for t in plan.finished_tasks if t.operator_id in plan.fully_finished_operators}
    states = {operator_id: fully_finished_state(task) for operator_id, task in finished.items()}
    waiting = (task.operator_id for task in plan.not_started)
    return states | {operator_id: restored[operator_id] for operator_id in waiting if operator_id in restored}


def fully_finished_state(task: ExecutionTask) -> OperatorState:
    """Return what a checkpoint holds of an operator that had come to its end."""
    return OperatorState(
        operator_id=task.operator_id,
        uid=task.uid,
        name=task.name,
        parallelism=task.parallelism,
        max_parallelism=task.max_parallelism,
        is_fully_finished=True,
    )


def require_whole_union_state(state: OperatorState, finished_subtasks: AbstractSet[int]) -> None:
    """
    Refuse a union state of which a part is missing because some, not all subtasks have ended.

    After a restore every subtask gets the elements of all of them, so those of an ended one must not be lost. Broadcast
    state has no such need: every subtask has a copy of all of it.

    :param state: The operator's state as it would be written.
    :param finished_subtasks: The subtasks that had ended.
    :raises CheckpointException: ``CHECKPOINT_DECLINED_TASK_CLOSING`` if the state of an ended subtask is not there.
    """
    if len(finished_subtasks) >= state.parallelism:
        return
    missing = sorted(finished_subtasks - state.subtask_states.keys())
    names = sorted(_union_names(state))
    if missing and names:
        raise CheckpointException(
            CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_CLOSING,
            CoordinatorError(
                f"Expected all {state.parallelism} subtasks of operator {state.uid!r} in its union state {', '.join(names)}, "
                f"found none of {missing}, which have ended; take the checkpoint when all have ended."
            ),
        )


def _union_names(state: OperatorState) -> set[str]:
    return {
        name
        for handle in _operator_handles(state)
        for name, meta in handle.states
        if meta.mode is DistributionMode.UNION
    }


def _operator_handles(state: OperatorState) -> Iterator[OperatorStateHandle]:
    return chain.from_iterable((*s.managed_operator, *s.raw_operator) for s in state.subtask_states.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file and what must be in it."""

    uri: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotContent:
    """What a checkpoint, or the part of one operator, holds."""

    operator_states: tuple[OperatorState, ...] = ()
    master_states: tuple[MasterState, ...] = ()


class SnapshotStorage(Protocol):
    """
    Where checkpoints lie.

    Every write may be repeated: equal bytes under one name are success. Nothing is called while a transaction is open.
    """

    @property
    def has_default_savepoint_location(self) -> bool:
        """Tell whether a savepoint may be asked for without a target."""
        ...

    def initialize_base_locations_for_checkpoint(self) -> None:
        """
        Make the directories that all checkpoints have in common.

        :raises StorageError: if that fails.
        """
        ...

    def checkpoint_location(self, checkpoint_id: int) -> str:
        """Return the directory of a checkpoint; nothing is made."""
        ...

    def new_savepoint_location(self, target: str | None) -> str:
        """
        Return a new name for the directory of a savepoint; nothing is made.

        :raises InvalidConfigurationError: if there is neither a target nor a default.
        """
        ...

    def initialize_location(self, location: str) -> None:
        """
        Make the directory of a checkpoint.

        :raises StorageError: if that fails.
        """
        ...

    def write_manifest(self, checkpoint: CheckpointRecord, content: SnapshotContent) -> StoredFile:
        """
        Write the part of an operator into the directory of its checkpoint, under a name that follows from the bytes.

        :raises StorageError: if that fails.
        """
        ...

    def write_metadata(self, checkpoint: CheckpointRecord, content: SnapshotContent) -> StoredFile:
        """
        Write the metadata of a checkpoint, whole or not at all.

        :raises StorageError: if that fails, or other bytes are there.
        """
        ...

    def read(self, file: StoredFile) -> SnapshotContent:
        """
        Return what is in a manifest or in the metadata.

        :raises CorruptStateError: if it was changed after it was written.
        :raises CheckpointNotFoundError: if it is missing.
        """
        ...

    def copy_state(self, checkpoint: CheckpointRecord, states: Iterable[OperatorState]) -> tuple[OperatorState, ...]:
        """
        Copy the files of some states into the directory of a checkpoint and return the states that name the copies.

        :raises StorageError: if that fails.
        :raises CheckpointNotFoundError: if one of them is missing.
        """
        ...

    def exists(self, uri: str) -> bool:
        """
        Tell whether a file or directory is there.

        :raises StorageError: if the storage does not answer.
        """
        ...

    def delete_manifest(self, uri: str) -> None:
        """
        Delete a manifest that no row names.

        :raises StorageError: if it may still be there.
        """
        ...

    def resolve_checkpoint(self, pointer: str) -> CompletedCheckpoint:
        """
        Return the snapshot of any job that lies at a pointer.

        :raises InvalidConfigurationError: for an empty pointer.
        :raises CheckpointNotFoundError: if there is none.
        """
        ...


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
