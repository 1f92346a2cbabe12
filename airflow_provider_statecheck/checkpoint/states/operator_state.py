"""The state of one operator in a checkpoint, subtask by subtask."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.states.handles import (
    KeyedStateHandle,
    OperatorStateHandle,
    StreamStateHandle,
)
from airflow_provider_statecheck.exceptions import InvalidConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSubtaskState:
    """What one subtask saved."""

    managed_operator: tuple[OperatorStateHandle, ...] = ()
    raw_operator: tuple[OperatorStateHandle, ...] = ()
    managed_keyed: tuple[KeyedStateHandle, ...] = ()
    raw_keyed: tuple[KeyedStateHandle, ...] = ()

    @property
    def has_state(self) -> bool:
        """Tell whether there is any state."""
        return bool(self.managed_operator or self.raw_operator or self.managed_keyed or self.raw_keyed)

    @property
    def state_size(self) -> int:
        """Return how many bytes of state there are."""
        handles = (*self.managed_operator, *self.raw_operator, *self.managed_keyed, *self.raw_keyed)
        return sum(handle.state_size for handle in handles)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorState:
    """
    What all subtasks of an operator saved; a subtask without state has no entry.

    :raises InvalidConfigurationError: for a subtask that the operator does not have, or any of one that is fully finished.
    """

    operator_id: OperatorId
    uid: str
    name: str = ""
    parallelism: int
    max_parallelism: int
    subtask_states: dict[int, OperatorSubtaskState] = field(default_factory=dict)
    coordinator_state: StreamStateHandle | None = None
    is_fully_finished: bool = False
    """Whether all its subtasks had come to their end; then none of them has state."""

    def __post_init__(self) -> None:
        for index in self.subtask_states:
            self._require_index(index)

    @property
    def has_state(self) -> bool:
        """Tell whether a subtask or its coordinator has any state."""
        return self.coordinator_state is not None or any(state.has_state for state in self.subtask_states.values())

    @property
    def state_size(self) -> int:
        """Return how many bytes of state there are."""
        own = self.coordinator_state.state_size if self.coordinator_state else 0
        return own + sum(state.state_size for state in self.subtask_states.values())

    def put_state(self, index: int, state: OperatorSubtaskState) -> OperatorState:
        """
        Return the operator with the state of one more subtask, or another state of one that it has.

        :raises InvalidConfigurationError: for a subtask that the operator does not have, or if it is fully finished.
        """
        return replace(self, subtask_states=self.subtask_states | {index: state})

    def _require_index(self, index: int) -> None:
        if self.is_fully_finished:
            raise InvalidConfigurationError(
                f"Expected no state of subtasks of the fully finished operator {self.uid!r}, found some of subtask {index}."
            )
        if not 0 <= index < self.parallelism:
            raise InvalidConfigurationError(
                f"Expected a subtask of operator {self.uid!r} from 0 to {self.parallelism - 1}, found {index}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterState:
    """What a master hook saved."""

    name: str
    version: int
    data: bytes
