"""Who gets which state on restore: Flink's ``StateAssignmentOperation``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.states.handles import StreamStateHandle
from airflow_provider_statecheck.checkpoint.states.keyed_redistribution import redistribute_keyed
from airflow_provider_statecheck.checkpoint.states.matching import MatchedStates
from airflow_provider_statecheck.checkpoint.states.operator_state import OperatorState, OperatorSubtaskState
from airflow_provider_statecheck.checkpoint.states.redistribution import redistribute
from airflow_provider_statecheck.checkpoint.states.restore_target import RestoreTarget
from airflow_provider_statecheck.checkpoint.states.validation import validate_states

Handle = TypeVar("Handle")
_NOTHING = OperatorSubtaskState()


@dataclass(frozen=True, slots=True, kw_only=True)
class StateAssignment:
    """What a restore gives to the operators of a job."""

    subtask_states: dict[tuple[OperatorId, int], OperatorSubtaskState] = field(default_factory=dict)
    """By operator and index; a subtask for which there is nothing has no entry."""
    coordinator_states: dict[OperatorId, StreamStateHandle] = field(default_factory=dict)
    max_parallelisms: dict[OperatorId, int] = field(default_factory=dict)
    """With how many key groups each operator goes on that had state."""
    finished: frozenset[OperatorId] = frozenset()
    """Operators that were at their end and do not run again."""
    matched: MatchedStates
    """Which operators found their state, which are new, and whose state is dropped."""


def assign_states(
    tasks: Iterable[RestoreTarget],
    operator_states: Iterable[OperatorState],
    *,
    renamed_uids: Mapping[str, str] | None = None,
    allow_non_restored_state: bool = False,
    all_or_nothing_state: bool = False,
) -> StateAssignment:
    """
    Give each subtask its part of the state of a checkpoint; either all of it fits, or nothing is given.

    :param tasks: The operators to restore. Those that share an Airflow task are matched one by one like others.
    :param renamed_uids: New uids by old ones.
    :param allow_non_restored_state: Whether state may be dropped because its operator is not among the tasks.
    :param all_or_nothing_state: Whether an operator of which some subtasks have state must have state of all.
    :raises IncompatibleCheckpointError: if the state does not fit the operators.
    :raises InvalidConfigurationError: if two operators have one uid or id.
    """
    matched = validate_states(
        tasks,
        operator_states,
        renamed_uids=renamed_uids,
        allow_non_restored_state=allow_non_restored_state,
        all_or_nothing_state=all_or_nothing_state,
    )
    coordinators = ((target.operator_id, state.coordinator_state) for target, state in matched.pairs)
    return StateAssignment(
        subtask_states={
            (target.operator_id, index): subtask
            for target, state in matched.pairs
            for index, subtask in enumerate(_redistributed(target, state))
            if subtask.has_state
        },
        coordinator_states={operator_id: handle for operator_id, handle in coordinators if handle is not None},
        max_parallelisms={target.operator_id: state.max_parallelism for target, state in matched.pairs},
        finished=frozenset(target.operator_id for target, state in matched.pairs if state.is_fully_finished),
        matched=matched,
    )


def _redistributed(target: RestoreTarget, state: OperatorState) -> list[OperatorSubtaskState]:
    old, new = state.parallelism, target.parallelism
    max_parallelism = state.max_parallelism

    def of_all(kind: Callable[[OperatorSubtaskState], tuple[Handle, ...]]) -> list[tuple[Handle, ...]]:
        return [kind(state.subtask_states.get(index, _NOTHING)) for index in range(old)]

    managed_operator = redistribute(of_all(lambda subtask: subtask.managed_operator), old, new)
    raw_operator = redistribute(of_all(lambda subtask: subtask.raw_operator), old, new)
    managed_keyed = redistribute_keyed(of_all(lambda subtask: subtask.managed_keyed), new, max_parallelism)
    raw_keyed = redistribute_keyed(of_all(lambda subtask: subtask.raw_keyed), new, max_parallelism)
    return [
        OperatorSubtaskState(
            managed_operator=managed_operator[index],
            raw_operator=raw_operator[index],
            managed_keyed=managed_keyed[index],
            raw_keyed=raw_keyed[index],
        )
        for index in range(new)
    ]
