"""One entry of a map state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class MapEntry(Generic[K, V]):
    """
    A user key and its value, which can be replaced; unpacks into both.

    :param put: Writes a value through to the state.
    """

    __slots__ = ("_put", "key", "value")

    def __init__(self, key: K, value: V, put: Callable[[K, V], None]) -> None:
        self.key = key
        self.value = value
        self._put = put

    def __iter__(self) -> Iterator[Any]:
        """Return the key and the value."""
        return iter((self.key, self.value))

    def set_value(self, value: V) -> V:
        """Replace the value here and in the state, and return the one before."""
        before = self.value
        self._put(self.key, value)
        self.value = value
        return before
