"""Contents that a coordinator adds for other operators, and state that only one checkpoint names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from dataclasses import replace
from itertools import chain

from airflow_provider_statecheck.checkpoint.aligned.contents import AlignedContent
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    DistributionMode,
    FileStateHandle,
    MasterState,
    OperatorState,
    SegmentFileStateHandle,
    StreamStateHandle,
)
from airflow_provider_statecheck.exceptions import CoordinatorError
from airflow_provider_statecheck.flink.plan import CheckpointPlan, ExecutionTask


def coordinator_content(
    checkpoint: CheckpointRecord,
    plan: CheckpointPlan,
    restored: Mapping[OperatorId, OperatorState],
    coordinators: Mapping[OperatorId, bytes | None],
    masters: Sequence[MasterState],
) -> AlignedContent:
    """
    Return the content of the coordinator's manifest.

    It has an entry for every operator of the checkpoint, including operators without state.

    :param restored: The states of operators that have not started.
    :raises CoordinatorError: if an operator coordinator belongs to no operator of the job.
    """
    answering = {task.operator_id: _state_of(task) for task in plan.tasks_to_wait_for}
    states = answering | unanswered_states(plan, restored)
    tasks = {task.operator_id: task for task in _tasks_of(plan)}
    for operator_id, data in coordinators.items():
        if data is None:
            continue
        if operator_id not in tasks and operator_id not in states:
            raise _unknown_operator(operator_id, tasks.values())
        handle = ByteStreamStateHandle(f"coordinator-{checkpoint.checkpoint_id}-{operator_id}", data)
        base = states.get(operator_id) or _state_of(tasks[operator_id])
        states[operator_id] = replace(base, coordinator_state=handle)
    ordered = tuple(states[operator_id] for operator_id in sorted(states))
    return AlignedContent(operator_states=ordered, master_states=tuple(masters))


def unanswered_states(
    plan: CheckpointPlan, restored: Mapping[OperatorId, OperatorState]
) -> dict[OperatorId, OperatorState]:
    """
    Return the states that the coordinator adds for operators without an acknowledgement.

    A finished operator is marked as fully finished. An operator that has not started keeps a reference to the state it
    would be restored with, if any.

    :param restored: The states of the latest checkpoint by operator.
    """
    finished = {t.operator_id: t for t in plan.finished_tasks if t.operator_id in plan.fully_finished_operators}
    states = {operator_id: _state_of(task, is_fully_finished=True) for operator_id, task in finished.items()}
    waiting = (task.operator_id for task in plan.not_started)
    return states | {operator_id: restored[operator_id] for operator_id in waiting if operator_id in restored}


def _state_of(task: ExecutionTask, *, is_fully_finished: bool = False) -> OperatorState:
    """Return the state of an operator without subtask states."""
    return OperatorState(
        operator_id=task.operator_id,
        uid=task.uid,
        name=task.name,
        parallelism=task.parallelism,
        max_parallelism=task.max_parallelism,
        is_fully_finished=is_fully_finished,
    )


def _tasks_of(plan: CheckpointPlan) -> tuple[ExecutionTask, ...]:
    notified = (*plan.tasks_to_trigger, *plan.tasks_to_commit_to)
    return (*notified, *plan.finished_tasks, *plan.tasks_to_wait_for, *plan.not_started)


def _unknown_operator(operator_id: OperatorId, tasks: Iterable[ExecutionTask]) -> CoordinatorError:
    known = ", ".join(f"{task.uid!r} (id {task.operator_id})" for task in tasks)
    return CoordinatorError(
        f"Expected the operator coordinator of an operator of the job ({known}), found that of operator {operator_id}, "
        f"which the job does not have; give the operator coordinator the id of its operator.",
        operator_id=operator_id,
    )


def require_whole_union_state(state: OperatorState, finished_subtasks: AbstractSet[int]) -> None:
    """
    Require union state to be complete, unless all subtasks have ended.

    A restore gives every subtask the elements of all subtasks, so the elements of an ended one must not be lost.
    Broadcast state is not checked: every subtask has a full copy.

    :param state: The operator's state to write.
    :param finished_subtasks: The indexes of the ended subtasks.
    :raises CheckpointException: if union state of an ended subtask is missing, as ``CHECKPOINT_DECLINED_TASK_CLOSING``.
    """
    if len(finished_subtasks) >= state.parallelism:
        return
    missing = sorted(finished_subtasks - state.subtask_states.keys())
    names = sorted(_union_names(state))
    if missing and names:
        raise CheckpointException(
            CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_CLOSING,
            CoordinatorError(
                f"Expected all {state.parallelism} subtasks of operator {state.uid!r} in its union state "
                f"{', '.join(names)}, found none of {missing}, which have ended; take the checkpoint when all have "
                "ended."
            ),
        )


def _union_names(state: OperatorState) -> set[str]:
    handles = chain.from_iterable((*s.managed_operator, *s.raw_operator) for s in state.subtask_states.values())
    return {name for handle in handles for name, meta in handle.states if meta.mode is DistributionMode.UNION}


def location_of(handle: StreamStateHandle) -> tuple[str, ...]:
    """Return a key of the stored bytes; handles with equal keys refer to the same bytes."""
    if isinstance(handle, FileStateHandle):
        return ("file", handle.uri)
    if isinstance(handle, SegmentFileStateHandle):
        return ("segment", handle.uri, handle.logical_id)
    return ("inline", handle.name)


def private_states(operator_states: Iterable[OperatorState]) -> Iterator[StreamStateHandle]:
    """Yield the state streams that belong to one checkpoint only."""
    for operator_state in operator_states:
        if operator_state.coordinator_state is not None:
            yield operator_state.coordinator_state
        for state in operator_state.subtask_states.values():
            yield from (handle.stream for handle in (*state.managed_operator, *state.raw_operator))
            for keyed in state.managed_keyed:
                yield from (stream for _, stream in keyed.private)
                if keyed.meta is not None:
                    yield keyed.meta


def unreferenced_streams(
    states: Iterable[OperatorState], others: Iterable[OperatorState]
) -> tuple[StreamStateHandle, ...]:
    """Return the private streams of ``states`` that ``others`` do not refer to."""
    named = {location_of(stream) for stream in private_states(others)}
    return tuple(stream for stream in private_states(states) if location_of(stream) not in named)
