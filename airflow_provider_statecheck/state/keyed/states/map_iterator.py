"""Going through a map state, with removal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from airflow_provider_statecheck.exceptions import CoordinatorError
from airflow_provider_statecheck.state.keyed.states.map_entry import MapEntry

T = TypeVar("T")


class MapIterator(Generic[T]):
    """
    Goes through the entries as they were when it was made; the key at that time stays its own.

    :param entries: What it goes through.
    :param view: What is shown of an entry.
    :param remove: Removes a user key from the state.
    """

    def __init__(
        self,
        entries: Iterator[MapEntry[Any, Any]],
        view: Callable[[MapEntry[Any, Any]], T],
        remove: Callable[[Any], None],
    ) -> None:
        self._entries = entries
        self._view = view
        self._remove = remove
        self._last: MapEntry[Any, Any] | None = None

    def __iter__(self) -> MapIterator[T]:
        """Return itself."""
        return self

    def __next__(self) -> T:
        """Return the next one."""
        self._last = None
        self._last = next(self._entries)
        return self._view(self._last)

    def remove(self) -> None:
        """
        Remove from the state what was returned last.

        :raises CoordinatorError: if nothing was returned yet, or it was removed already.
        """
        if self._last is None:
            raise CoordinatorError("Expected an entry to remove, found none; call next() before each remove().")
        self._remove(self._last.key)
        self._last = None
