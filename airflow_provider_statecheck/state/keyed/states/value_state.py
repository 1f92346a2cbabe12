"""One value for each key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.state.keyed.key_context import KeyContext, no_key
from airflow_provider_statecheck.state.keyed.state_values import StateValues
from airflow_provider_statecheck.state.keyed.states.cell_state import CellState
from airflow_provider_statecheck.state.keyed.tables import StateTable

T = TypeVar("T")


class ValueState(CellState, Generic[T]):
    """One value for each key, which can be read and replaced."""

    __slots__ = ()

    # Both methods are called for each element, so they repeat what ``CellState`` does rather than call it.

    def value(self) -> T | None:
        """
        Return the value, else a copy of the default, else ``None``; to change it in place changes nothing in the state.

        :raises CoordinatorError: if there is no current key.
        """
        context = self._context
        if context.key_group < 0:
            raise no_key()
        value: T | None = self._get(context.key, context.key_group, self._namespace)
        thaw = self._thaw
        return value if thaw is None or value is None else thaw(value)

    def update(self, value: T | None) -> None:
        """
        Set the value as it is now; ``None`` clears it, so that the default is seen again.

        :raises UnsupportedStateError: for a value of another type than the state's.
        :raises CoordinatorError: if there is no current key.
        """
        context = self._context
        if context.key_group < 0:
            raise no_key()
        if value is None:
            self._remove(context.key, context.key_group, self._namespace)
            return
        try:
            kept = self._freeze(value)
        except UnsupportedStateError as error:
            raise self._values.misfit(context.key, error) from error
        self._put(context.key, context.key_group, self._namespace, kept)


class DefaultedValueState(ValueState[T]):
    """
    A value with a default.

    :param default: Makes a new default at each call.
    """

    __slots__ = ("_default",)

    def __init__(
        self,
        table: StateTable,
        context: KeyContext,
        namespace: str,
        values: StateValues,
        default: Callable[[], T],
    ) -> None:
        super().__init__(table, context, namespace, values)
        self._default = default

    def value(self) -> T | None:
        """
        Return the value, else a copy of the default; to change it in place changes nothing in the state.

        :raises CoordinatorError: if there is no current key.
        """
        cell = self._cell()
        return self._default() if cell is None else self._values.thawed(cell)
