"""List and broadcast state of an operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from airflow_provider_statecheck.exceptions import CoordinatorError, InvalidConfigurationError
from airflow_provider_statecheck.state.descriptors import ListStateDescriptor, MapStateDescriptor

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
        own_key, own_value = self._own(_broadcast_state_required(key), value)
        self._entries[own_key] = own_value

    def put_all(self, entries: Mapping[K, V]) -> None:
        """
        Set entries, as their values are now.

        :raises InvalidConfigurationError: for a key ``None``; nothing is changed then.
        :raises UnsupportedStateError: for a key or a value of another type than the state's; nothing is changed then.
        """
        self._entries |= dict([self._own(_broadcast_state_required(key), value) for key, value in entries.items()])

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


def _broadcast_state_required(key: K | None) -> K:
    if key is None:
        raise InvalidConfigurationError("Expected a key of a broadcast state, found None.")
    return key


def _read_only(method: str) -> CoordinatorError:
    return CoordinatorError(
        f"Expected broadcast state to be read where elements are not broadcast, found a call of {method}; other subtasks "
        f"would not see the change, so make it where broadcast elements are processed."
    )


class OperatorStateStore(Protocol):
    """Lists and maps by name; the same descriptor gives the same state."""

    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> PartitionableListState[T]:
        """
        Return a list whose elements are dealt out when the parallelism changes.

        :raises CoordinatorError: if the name is that of a union list.
        :raises InvalidConfigurationError: if the name is taken by other types, or state is to expire.
        :raises StateMigrationError: if restored state cannot go on with the descriptor.
        """
        ...

    def get_union_list_state(self, descriptor: ListStateDescriptor[T]) -> PartitionableListState[T]:
        """
        Return a list of which each subtask gets all elements of all subtasks when it is restored.

        :raises CoordinatorError: if the name is that of a list which is dealt out.
        :raises InvalidConfigurationError: if the name is taken by other types, or state is to expire.
        :raises StateMigrationError: if restored state cannot go on with the descriptor.
        """
        ...

    def get_broadcast_state(self, descriptor: MapStateDescriptor[T]) -> BroadcastState[Any, T]:
        """
        Return a map that is the same in all subtasks; it may have the name of a list.

        :raises InvalidConfigurationError: if the name is taken by other types, or state is to expire.
        :raises StateMigrationError: if restored state cannot go on with the descriptor.
        """
        ...

    def get_registered_state_names(self) -> frozenset[str]:
        """Return the names of lists, the restored ones included."""
        ...

    def get_registered_broadcast_state_names(self) -> frozenset[str]:
        """Return the names of broadcast maps, the restored ones included."""
        ...
