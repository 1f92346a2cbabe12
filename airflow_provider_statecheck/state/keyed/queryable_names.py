"""Queryable names of the keyed states of a stage, which state backends register."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NamedState:
    """State that has a queryable name."""

    operator: str
    """Uid of the operator."""
    state: str
    """Name of the state within its operator."""


class TaskKvStateRegistry:
    """
    Queryable names of the functions that share it: those of a task, or of a stage while it is planned.

    Queries read checkpoints, so a name leads to its state from the next checkpoint on.
    """

    def __init__(self) -> None:
        self._claims: dict[str, dict[NamedState, None]] = {}

    def register_kv_state(self, registration_name: str, state: NamedState) -> None:
        """Register a queryable name of a state, which may register it again."""
        self._claims.setdefault(registration_name, {})[state] = None

    def states_of(self, registration_name: str) -> tuple[NamedState, ...]:
        """Return the states with a name in the order of their registration; queries reach the first one only."""
        return tuple(self._claims.get(registration_name, ()))

    def conflicts(self) -> dict[str, tuple[NamedState, ...]]:
        """Return the states of each name that several of them have."""
        return {name: tuple(states) for name, states in self._claims.items() if len(states) > 1}
