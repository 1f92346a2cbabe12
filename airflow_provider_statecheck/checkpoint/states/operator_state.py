"""The state of one operator in a checkpoint, subtask by subtask."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.states.handles import (
    KeyedStateHandle,
    OperatorStateHandle,
    StreamStateHandle,
)


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
    """What all subtasks of an operator saved; a subtask without state has no entry."""

    operator_id: OperatorId
    uid: str
    name: str = ""
    parallelism: int
    max_parallelism: int
    subtask_states: dict[int, OperatorSubtaskState] = field(default_factory=dict)
    coordinator_state: StreamStateHandle | None = None
    is_fully_finished: bool = False

    @property
    def state_size(self) -> int:
        """Return how many bytes of state there are."""
        own = self.coordinator_state.state_size if self.coordinator_state else 0
        return own + sum(state.state_size for state in self.subtask_states.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterState:
    """What a master hook saved."""

    name: str
    version: int
    data: bytes
