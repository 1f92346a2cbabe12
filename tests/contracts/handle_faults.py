"""Faults by number in a store of state handles: every commit of its rows and every call on its storage is a point."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from airflow_provider_statecheck.checkpoint.state_handle_store import HandleRow, HandleRows, HandleTransaction
from airflow_provider_statecheck.checkpoint.state_pointers import StatePointer, StateStorage
from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.testing.faults import FaultPlan


class LostConnectionError(Exception):
    """What a driver might raise that nobody has heard of."""


class FaultyHandleRows:
    """Rows whose commits a plan counts; what is raised then says nothing about the outcome."""

    def __init__(self, rows: HandleRows, plan: FaultPlan) -> None:
        self._rows = rows
        self._plan = plan

    @contextmanager
    def transaction(self) -> Iterator[HandleTransaction]:
        """Begin a change that may fail before or after its commit."""
        with ExitStack() as stack:
            yield stack.enter_context(self._rows.transaction())
            # Popped inside: where the commit does not happen, the error rolls back.
            self._plan.carry_out("commit", lambda: stack.pop_all().close(), LostConnectionError)

    def read(self) -> tuple[HandleRow, ...]:
        """Return all rows."""
        return self._rows.read()

    def find(self, name: str) -> HandleRow | None:
        """Return the row of a name."""
        return self._rows.find(name)


class FaultyStates:
    """State whose writes and deletes a plan counts."""

    def __init__(self, states: StateStorage[bytes], plan: FaultPlan) -> None:
        self._states = states
        self._plan = plan

    def store(self, state: bytes) -> StatePointer:
        """Store state or fail before."""
        pointer: StatePointer = self._plan.carry_out("store", lambda: self._states.store(state), StorageError)
        return pointer

    def retrieve(self, pointer: StatePointer) -> bytes:
        """Return state."""
        return self._states.retrieve(pointer)

    def discard(self, pointer: StatePointer) -> None:
        """Discard state, or fail before or after."""
        self._plan.carry_out("discard", lambda: self._states.discard(pointer), StorageError)
