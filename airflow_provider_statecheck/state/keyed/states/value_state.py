"""One value for each key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from airflow_provider_statecheck.state.keyed.key_context import KeyContext, no_key
from airflow_provider_statecheck.state.keyed.states.cell_state import CellState
from airflow_provider_statecheck.state.keyed.tables import StateTable

T = TypeVar("T")


class ValueState(CellState, Generic[T]):
    """One value for each key, which can be read and replaced."""

    __slots__ = ()

    # Both methods are called for each element, so they repeat what ``CellState`` does rather than call it.

    def value(self) -> T | None:
        """
        Return the value, else a copy of the default, else ``None``.

        :raises CoordinatorError: if there is no current key.
        """
        context = self._context
        if context.key_group < 0:
            raise no_key()
        value: T | None = self._get(context.key, context.key_group, self._namespace)
        return value

    def update(self, value: T | None) -> None:
        """
        Set the value; ``None`` clears it, so that the default is seen again.

        :raises CoordinatorError: if there is no current key.
        """
        context = self._context
        if context.key_group < 0:
            raise no_key()
        if value is None:
            self._remove(context.key, context.key_group, self._namespace)
        else:
            self._put(context.key, context.key_group, self._namespace, value)


class DefaultedValueState(ValueState[T]):
    """
    A value with a default.

    :param default: Makes a new default at each call.
    """

    __slots__ = ("_default",)

    def __init__(self, table: StateTable, context: KeyContext, namespace: str, default: Callable[[], T]) -> None:
        super().__init__(table, context, namespace)
        self._default = default

    def value(self) -> T | None:
        """
        Return the value, else a copy of the default.

        :raises CoordinatorError: if there is no current key.
        """
        value: T | None = self._cell()
        return self._default() if value is None else value
