"""A list that belongs to a subtask."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from airflow_provider_statecheck.exceptions import InvalidConfigurationError

T = TypeVar("T")


class PartitionableListState(Generic[T]):
    """
    Elements in the order in which they were added; each of them may go to another subtask when the parallelism changes.

    :param elements: To begin with; nobody else changes them.
    :param own: Checks an element, and returns what the state keeps of it.
    :param copy: Returns an element of its own for a reader.
    """

    __slots__ = ("_copy", "_elements", "_own")

    def __init__(
        self,
        elements: Iterable[T] = (),
        own: Callable[[T], T] = lambda element: element,
        copy: Callable[[T], T] = lambda element: element,
    ) -> None:
        self._elements = list(elements)
        self._own = own
        self._copy = copy

    def get(self) -> Iterable[T]:
        """Return the elements as they are now, none if there is nothing; to change one in place changes nothing in the state."""
        return tuple(map(self._copy, self._elements))

    def __iter__(self) -> Iterator[T]:
        """Return an iterator over the elements as they are now."""
        return iter(self.get())

    def add(self, element: T) -> None:
        """
        Add an element at the end, as it is now.

        :raises InvalidConfigurationError: for ``None``.
        :raises UnsupportedStateError: for an element of another type than the state's.
        """
        self._elements.append(self._own(_required(element)))

    def add_all(self, elements: Iterable[T]) -> None:
        """
        Add elements at the end, as they are now.

        :raises InvalidConfigurationError: for ``None``, alone or among the elements; the list is unchanged then.
        :raises UnsupportedStateError: for an element of another type than the state's; the list is unchanged then.
        """
        self._elements.extend(self._all_own(elements))

    def update(self, elements: Iterable[T]) -> None:
        """
        Replace the list.

        :raises InvalidConfigurationError: for ``None``, alone or among the elements; the list is unchanged then.
        :raises UnsupportedStateError: for an element of another type than the state's; the list is unchanged then.
        """
        self._elements = self._all_own(elements)

    def clear(self) -> None:
        """Remove all elements; the state stays registered."""
        self._elements = []

    def _all_own(self, elements: Iterable[T]) -> list[T]:
        return [self._own(element) for element in _all_required(elements)]


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
