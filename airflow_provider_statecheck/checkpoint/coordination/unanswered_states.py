"""What a checkpoint holds of operators that did not answer, because they had ended or had not begun."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set as AbstractSet
from itertools import chain

from airflow_provider_statecheck.checkpoint.coordination.plan import CheckpointPlan, ExecutionTask
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.states.handles import DistributionMode, OperatorStateHandle
from airflow_provider_statecheck.checkpoint.states.operator_state import OperatorState
from airflow_provider_statecheck.exceptions import CoordinatorError


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
