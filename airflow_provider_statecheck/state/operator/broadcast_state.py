"""A map that is the same in all subtasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, NoReturn, TypeVar

from airflow_provider_statecheck.exceptions import CoordinatorError, InvalidConfigurationError

K = TypeVar("K")
V = TypeVar("V")


class BroadcastState(Generic[K, V]):
    """
    Entries that every subtask makes alike from what is broadcast to all of them; nothing checks that they do.

    :param entries: To begin with; nobody else changes them.
    :param own: Checks an entry, and returns what the state keeps of it.
    :param copy: Returns a value of its own for a reader.
    """

    __slots__ = ("_copy", "_entries", "_own")

    def __init__(
        self,
        entries: Iterable[tuple[K, V]] = (),
        own: Callable[[K, V], tuple[K, V]] = lambda key, value: (key, value),
        copy: Callable[[V], V] = lambda value: value,
    ) -> None:
        self._entries = dict(entries)
        self._own = own
        self._copy = copy

    def get(self, key: K) -> V | None:
        """Return the value of a key, or ``None``; to change it in place changes nothing in the state."""
        value = self._entries.get(key)
        return None if value is None else self._copy(value)

    def contains(self, key: K) -> bool:
        """Tell whether there is an entry."""
        return key in self._entries

    def immutable_entries(self) -> Iterable[tuple[K, V]]:
        """Return the entries as they are now; to change a value in place changes nothing in the state."""
        return tuple((key, self._copy(value)) for key, value in self._entries.items())

    def put(self, key: K, value: V) -> None:
        """
        Set an entry, as its value is now.

        :raises InvalidConfigurationError: for the key ``None``.
        :raises UnsupportedStateError: for a key or a value of another type than the state's.
        """
        own_key, own_value = self._own(_required(key), value)
        self._entries[own_key] = own_value

    def put_all(self, entries: Mapping[K, V]) -> None:
        """
        Set entries, as their values are now.

        :raises InvalidConfigurationError: for a key ``None``; nothing is changed then.
        :raises UnsupportedStateError: for a key or a value of another type than the state's; nothing is changed then.
        """
        self._entries |= dict([self._own(_required(key), value) for key, value in entries.items()])

    def remove(self, key: K) -> None:
        """Remove an entry; where there is none nothing happens."""
        self._entries.pop(key, None)

    def clear(self) -> None:
        """Remove all entries; the state stays registered."""
        self._entries = {}

    def entries(self) -> Iterator[tuple[K, V]]:
        """Return the entries as they are now."""
        return iter(self.immutable_entries())

    def __iter__(self) -> Iterator[tuple[K, V]]:
        """Return an iterator over the entries as they are now."""
        return self.entries()

    def read_only(self) -> ReadOnlyBroadcastState[K, V]:
        """Return the view for the side that is not broadcast, which must not change what other subtasks do not see."""
        return ReadOnlyBroadcastState(self)


class ReadOnlyBroadcastState(Generic[K, V]):
    """
    A broadcast state that can be read; it shows later changes of it.

    :param state: The one that it shows.
    """

    __slots__ = ("_state",)

    def __init__(self, state: BroadcastState[K, V]) -> None:
        self._state = state

    def get(self, key: K) -> V | None:
        """Return the value of a key, or ``None``; to change it in place changes nothing in the state."""
        return self._state.get(key)

    def contains(self, key: K) -> bool:
        """Tell whether there is an entry."""
        return self._state.contains(key)

    def immutable_entries(self) -> Iterable[tuple[K, V]]:
        """Return the entries as they are now."""
        return self._state.immutable_entries()

    def put(self, key: K, value: V) -> NoReturn:
        """Refuse; raises a ``CoordinatorError``."""
        raise _read_only("put")

    def put_all(self, entries: Mapping[K, V]) -> NoReturn:
        """Refuse; raises a ``CoordinatorError``."""
        raise _read_only("put_all")

    def remove(self, key: K) -> NoReturn:
        """Refuse; raises a ``CoordinatorError``."""
        raise _read_only("remove")

    def clear(self) -> NoReturn:
        """Refuse; raises a ``CoordinatorError``."""
        raise _read_only("clear")


def _required(key: K | None) -> K:
    if key is None:
        raise InvalidConfigurationError("Expected a key of a broadcast state, found None.")
    return key


def _read_only(method: str) -> CoordinatorError:
    return CoordinatorError(
        f"Expected broadcast state to be read where elements are not broadcast, found a call of {method}; other subtasks "
        f"would not see the change, so make it where broadcast elements are processed."
    )
