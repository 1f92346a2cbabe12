"""List and broadcast state of operators, and the store that returns them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from airflow_provider_statecheck.exceptions import CoordinatorError, InvalidConfigurationError
from airflow_provider_statecheck.state.descriptors import ListStateDescriptor, MapStateDescriptor

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class OperatorStateStore(Protocol):
    """Operator states by name. Calls with equal descriptors return the same state."""

    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> PartitionableListState[T]:
        """
        Return a list state, whose elements are redistributed over the subtasks when the parallelism changes.

        :raises CoordinatorError: if a union list state has this name.
        :raises InvalidConfigurationError: if the name has other types, or the descriptor has a time to live.
        :raises StateMigrationError: if restored state is incompatible with the descriptor.
        """
        ...

    def get_union_list_state(self, descriptor: ListStateDescriptor[T]) -> PartitionableListState[T]:
        """
        Return a union list state: after a restore, each subtask has the elements of all subtasks.

        :raises CoordinatorError: if a list state with redistribution has this name.
        :raises InvalidConfigurationError: if the name has other types, or the descriptor has a time to live.
        :raises StateMigrationError: if restored state is incompatible with the descriptor.
        """
        ...

    def get_broadcast_state(self, descriptor: MapStateDescriptor[T]) -> BroadcastState[Any, T]:
        """
        Return a broadcast state. Its name may also be the name of a list state.

        :raises InvalidConfigurationError: if the name has other types, or the descriptor has a time to live.
        :raises StateMigrationError: if restored state is incompatible with the descriptor.
        """
        ...

    def get_registered_state_names(self) -> frozenset[str]:
        """Return the names of the registered and the restored list states."""
        ...

    def get_registered_broadcast_state_names(self) -> frozenset[str]:
        """Return the names of the registered and the restored broadcast states."""
        ...


class PartitionableListState(Generic[T]):
    """
    List of elements in insertion order.

    When the parallelism changes, the elements are redistributed over the subtasks. The state holds its own copies of the
    elements, and readers receive copies.

    :param elements: The initial elements, which the state owns.
    :param own: Checks an element and returns the object to store.
    :param copy: Returns a copy of a stored element for a reader.
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
        """Return copies of the current elements; an empty list state returns an empty iterable."""
        return tuple(map(self._copy, self._elements))

    def __iter__(self) -> Iterator[T]:
        """Return an iterator over copies of the current elements."""
        return iter(self.get())

    def add(self, element: T) -> None:
        """
        Append an element.

        :raises InvalidConfigurationError: if the element is ``None``.
        :raises UnsupportedStateError: if the element does not fit the type of the state.
        """
        self._elements.append(self._own(_require_element(element)))

    def add_all(self, elements: Iterable[T]) -> None:
        """
        Append elements. After an error the list is unchanged.

        :raises InvalidConfigurationError: if ``elements`` or one of them is ``None``.
        :raises UnsupportedStateError: if an element does not fit the type of the state.
        """
        self._elements.extend(self._owned(elements))

    def update(self, elements: Iterable[T]) -> None:
        """
        Replace all elements. After an error the list is unchanged.

        :raises InvalidConfigurationError: if ``elements`` or one of them is ``None``.
        :raises UnsupportedStateError: if an element does not fit the type of the state.
        """
        self._elements = self._owned(elements)

    def clear(self) -> None:
        """Remove all elements; the state stays registered."""
        self._elements = []

    def _owned(self, elements: Iterable[T]) -> list[T]:
        return [self._own(element) for element in _require_elements(elements)]


def _require_elements(elements: Iterable[T | None] | None) -> list[T]:
    if elements is None:
        raise _missing_element()
    return [_require_element(element) for element in elements]


def _require_element(element: T | None) -> T:
    if element is None:
        raise _missing_element()
    return element


def _missing_element() -> InvalidConfigurationError:
    return InvalidConfigurationError(
        "Expected elements of a list state, found None; omit the element, or call clear() to remove all."
    )


class BroadcastState(Generic[K, V]):
    """
    Map that every subtask must update in the same way from the broadcast elements; equality is not checked.

    The state holds its own copies of the entries, and readers receive copies of the values.

    :param entries: The initial entries, which the state owns.
    :param own: Checks an entry and returns the key and the value to store.
    :param copy: Returns a copy of a stored value for a reader.
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
        """Return a copy of the value of a key, or ``None`` if there is no entry."""
        value = self._entries.get(key)
        return None if value is None else self._copy(value)

    def contains(self, key: K) -> bool:
        """Return whether the key has an entry."""
        return key in self._entries

    def immutable_entries(self) -> Iterable[tuple[K, V]]:
        """Return the current entries with copies of the values."""
        return tuple((key, self._copy(value)) for key, value in self._entries.items())

    def put(self, key: K, value: V) -> None:
        """
        Set the value of a key.

        :raises InvalidConfigurationError: if the key is ``None``.
        :raises UnsupportedStateError: if the key or the value does not fit the type of the state.
        """
        own_key, own_value = self._own(_require_key(key), value)
        self._entries[own_key] = own_value

    def put_all(self, entries: Mapping[K, V]) -> None:
        """
        Set the values of several keys. After an error the map is unchanged.

        :raises InvalidConfigurationError: if a key is ``None``.
        :raises UnsupportedStateError: if a key or a value does not fit the type of the state.
        """
        self._entries |= dict([self._own(_require_key(key), value) for key, value in entries.items()])

    def remove(self, key: K) -> None:
        """Remove the entry of a key, if there is one."""
        self._entries.pop(key, None)

    def clear(self) -> None:
        """Remove all entries; the state stays registered."""
        self._entries = {}

    def entries(self) -> Iterator[tuple[K, V]]:
        """Return the current entries with copies of the values."""
        return iter(self.immutable_entries())

    def __iter__(self) -> Iterator[tuple[K, V]]:
        """Return an iterator over the current entries with copies of the values."""
        return self.entries()

    def read_only(self) -> ReadOnlyBroadcastState[K, V]:
        """Return a read-only view for functions of elements that are not broadcast."""
        return ReadOnlyBroadcastState(self)


class ReadOnlyBroadcastState(Generic[K, V]):
    """
    Read-only view of a broadcast state. Later changes of the state are visible.

    :param state: The broadcast state.
    """

    __slots__ = ("_state",)

    def __init__(self, state: BroadcastState[K, V]) -> None:
        self._state = state

    def get(self, key: K) -> V | None:
        """Return a copy of the value of a key, or ``None`` if there is no entry."""
        return self._state.get(key)

    def contains(self, key: K) -> bool:
        """Return whether the key has an entry."""
        return self._state.contains(key)

    def immutable_entries(self) -> Iterable[tuple[K, V]]:
        """Return the current entries with copies of the values."""
        return self._state.immutable_entries()

    def put(self, key: K, value: V) -> NoReturn:
        """Raise a ``CoordinatorError``."""
        raise _read_only("put")

    def put_all(self, entries: Mapping[K, V]) -> NoReturn:
        """Raise a ``CoordinatorError``."""
        raise _read_only("put_all")

    def remove(self, key: K) -> NoReturn:
        """Raise a ``CoordinatorError``."""
        raise _read_only("remove")

    def clear(self) -> NoReturn:
        """Raise a ``CoordinatorError``."""
        raise _read_only("clear")


def _require_key(key: K | None) -> K:
    if key is None:
        raise InvalidConfigurationError(
            "Expected a key of a broadcast state, found None; use another key for missing values."
        )
    return key


def _read_only(method: str) -> CoordinatorError:
    return CoordinatorError(
        f"Expected read access to broadcast state from elements that are not broadcast, found a call of {method}; update "
        f"the state in the function of the broadcast elements, which runs in all subtasks."
    )
