"""A list of elements for each key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.state.keyed.states.cell_state import CellState

T = TypeVar("T")


class ListState(CellState, Generic[T]):
    """Elements in the order in which they were added; an empty list is the same as none."""

    __slots__ = ()

    def get(self) -> Iterable[T]:
        """
        Return the elements, none if there is nothing; to change one in place changes nothing in the state.

        :raises CoordinatorError: if there is no current key.
        """
        return self._given(self._cell() or ())

    def __iter__(self) -> Iterator[T]:
        """Return an iterator over the elements."""
        return iter(self.get())

    def add(self, element: T) -> None:
        """
        Add an element at the end, as it is now.

        :raises InvalidConfigurationError: for ``None``; the list is unchanged then.
        :raises UnsupportedStateError: for an element of another type than the state's; the list is unchanged then.
        :raises CoordinatorError: if there is no current key.
        """
        self._append([_required(element)])

    def add_all(self, elements: Iterable[T]) -> None:
        """
        Add elements at the end, as they are now.

        :raises InvalidConfigurationError: for ``None``, alone or among the elements; the list is unchanged then.
        :raises UnsupportedStateError: for an element of another type than the state's; the list is unchanged then.
        :raises CoordinatorError: if there is no current key.
        """
        self._append(_all_required(elements))

    def update(self, elements: Iterable[T]) -> None:
        """
        Replace the list; no elements clear it.

        :raises InvalidConfigurationError: for ``None``, alone or among the elements; the list is unchanged then.
        :raises UnsupportedStateError: for an element of another type than the state's; the list is unchanged then.
        :raises CoordinatorError: if there is no current key.
        """
        self._replace(self._stored(_all_required(elements)))

    def merge_from(self, source: ListState[T]) -> None:
        """Add the elements of another namespace, and clear that one."""
        elements = source._cell()
        if elements:
            self._set_cell([*(self._cell() or ()), *elements])
            source.clear()

    def _append(self, elements: list[T]) -> None:
        stored = self._cell() or []
        if elements:
            stored.extend(self._stored(elements))
            self._set_cell(stored)

    def _stored(self, elements: list[T]) -> list[Any]:
        return list(map(self._frozen, elements))

    def _given(self, kept: Iterable[Any]) -> tuple[T, ...]:
        return tuple(kept if self._thaw is None else map(self._thaw, kept))

    def _replace(self, stored: list[Any]) -> None:
        if stored:
            self._set_cell(stored)
        else:
            self.clear()


def _required(element: T | None) -> T:
    if element is None:
        raise InvalidConfigurationError("Expected an element of a list state, found None; a list has no empty places.")
    return element


def _all_required(elements: Iterable[T]) -> list[T]:
    if elements is None:
        raise InvalidConfigurationError("Expected elements of a list state, found None; use clear() for no elements.")
    return [_required(element) for element in elements]
