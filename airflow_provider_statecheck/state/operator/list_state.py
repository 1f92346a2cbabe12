"""A list that belongs to a subtask."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from airflow_provider_statecheck.exceptions import InvalidConfigurationError

T = TypeVar("T")


class PartitionableListState(Generic[T]):
    """
    Elements in the order in which they were added; each of them may go to another subtask when the parallelism changes.

    :param elements: To begin with.
    """

    __slots__ = ("_elements",)

    def __init__(self, elements: Iterable[T] = ()) -> None:
        self._elements = list(elements)

    def get(self) -> Iterable[T]:
        """Return the elements as they are now, none if there is nothing."""
        return tuple(self._elements)

    def __iter__(self) -> Iterator[T]:
        """Return an iterator over the elements as they are now."""
        return iter(self.get())

    def add(self, element: T) -> None:
        """
        Add an element at the end.

        :raises InvalidConfigurationError: for ``None``.
        """
        self._elements.append(_required(element))

    def add_all(self, elements: Iterable[T]) -> None:
        """
        Add elements at the end.

        :raises InvalidConfigurationError: for ``None``, alone or among the elements; the list is unchanged then.
        """
        self._elements.extend(_all_required(elements))

    def update(self, elements: Iterable[T]) -> None:
        """
        Replace the list.

        :raises InvalidConfigurationError: for ``None``, alone or among the elements; the list is unchanged then.
        """
        self._elements = _all_required(elements)

    def clear(self) -> None:
        """Remove all elements; the state stays registered."""
        self._elements = []


def _all_required(elements: Iterable[T | None] | None) -> list[T]:
    if elements is None:
        raise _no_element()
    return [_required(element) for element in elements]


def _required(element: T | None) -> T:
    if element is None:
        raise _no_element()
    return element


def _no_element() -> InvalidConfigurationError:
    return InvalidConfigurationError(
        "Expected elements of a list state, found None; a list has no empty places, and clear() removes all of them."
    )
