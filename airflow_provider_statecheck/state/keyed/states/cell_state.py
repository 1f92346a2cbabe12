"""A keyed state that is one cell of a table."""

from __future__ import annotations

from typing import Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.state.keyed.key_context import KeyContext, no_key
from airflow_provider_statecheck.state.keyed.state_values import StateValues
from airflow_provider_statecheck.state.keyed.tables import StateTable


class CellState:
    """
    Reads and writes the cell of the current key.

    A cell holds the frozen form of a value.

    The methods of the table are kept, because looking them up at each access would cost as much as the access.

    :param table: Where the state is.
    :param context: The current key.
    :param namespace: In which this state is.
    :param values: How values become cells and come back.
    """

    __slots__ = ("_context", "_freeze", "_get", "_namespace", "_put", "_remove", "_thaw", "_values")

    def __init__(self, table: StateTable, context: KeyContext, namespace: str, values: StateValues) -> None:
        self._context = context
        self._namespace = namespace
        self._values = values
        self._freeze = values.freeze
        self._thaw = values.thaw
        self._get = table.get
        self._put = table.put
        self._remove = table.remove

    def clear(self) -> None:
        """
        Remove what the current key has; other keys keep theirs.

        :raises CoordinatorError: if there is no current key.
        """
        self._context.require()
        self._remove(self._context.key, self._context.key_group, self._namespace)

    def _value(self) -> Any:
        return self._values.thawed(self._cell())

    def _set_value(self, value: Any) -> None:
        self._set_cell(self._frozen(value))

    def _frozen(self, value: Any) -> Any:
        try:
            return self._freeze(value)
        except UnsupportedStateError as error:
            raise self._values.misfit(self._context.key, error) from error

    def _cell(self) -> Any:
        context = self._context
        if context.key_group < 0:
            raise no_key()
        return self._get(context.key, context.key_group, self._namespace)

    def _set_cell(self, cell: Any) -> None:
        context = self._context
        if context.key_group < 0:
            raise no_key()
        self._put(context.key, context.key_group, self._namespace, cell)
