"""Map states and their iterators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from airflow_provider_statecheck.exceptions import CoordinatorError, InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.state.keyed.registered_state import (
    MapTable,
    no_key,
    own_user_key_with,
)
from airflow_provider_statecheck.state.keyed.states import State

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
View = TypeVar("View")


class MapState(State, Generic[K, V]):
    """
    Keyed state with one map per key. Values may be ``None``; an empty map is equal to no map.

    Accesses without a current key raise ``CoordinatorError``.
    """

    __slots__ = ("_own_user_key", "_user_keys")
    _table: MapTable

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        assert self._state.key_serializer is not None  # noqa: S101 - the state is a map
        self._user_keys = self._state.key_serializer
        self._own_user_key = own_user_key_with(self._user_keys)

    def get(self, user_key: K) -> V | None:
        """Return the value of a user key, or ``None``. Modifying it does not change the state."""
        context = self._context
        if context.key_group < 0:
            raise no_key()
        value: V | None = self._get(context.key, context.key_group, self._namespace, user_key)
        thaw = self._thaw
        return value if thaw is None or value is None else thaw(value)

    def contains(self, user_key: K) -> bool:
        """Return whether there is an entry, also with the value ``None``."""
        return self._table.contains(*self._scope(), user_key)

    def put(self, user_key: K, value: V | None) -> None:
        """
        Set an entry.

        :raises UnsupportedStateError: if the user key or the value does not fit the type of the state.
        """
        context = self._context
        if context.key_group < 0:
            raise no_key()
        self._put(context.key, context.key_group, self._namespace, *self._frozen(context.key, user_key, value))

    def put_all(self, entries: Mapping[K, V | None]) -> None:
        """
        Set several entries. After an error the map is unchanged.

        :raises InvalidConfigurationError: if ``entries`` is ``None``.
        :raises UnsupportedStateError: if a user key or a value does not fit the type of the state.
        """
        scope = self._scope()
        if entries is None:
            raise InvalidConfigurationError(
                "Expected a mapping of entries, found None; call clear() to remove all entries."
            )
        for frozen in [self._frozen(scope[0], user_key, value) for user_key, value in entries.items()]:
            self._put(*scope, *frozen)

    def remove(self, user_key: K) -> None:
        """Remove an entry, if there is one."""
        self._remove(*self._scope(), user_key)

    def clear(self) -> None:
        self._table.clear(*self._scope())

    def is_empty(self) -> bool:
        """Return whether the map has no entries."""
        return self._table.is_empty(*self._scope())

    def entries(self) -> MapIterator[MapEntry[K, V]]:
        """Return the entries; each can be replaced or removed."""
        return self._iterator(lambda entry: entry)

    def keys(self) -> MapIterator[K]:
        """Return the user keys."""
        return self._iterator(lambda entry: entry.key)

    def values(self) -> MapIterator[V]:
        """Return the values."""
        return self._iterator(lambda entry: entry.value)

    def __iter__(self) -> MapIterator[MapEntry[K, V]]:
        """Return an iterator over the entries."""
        return self.entries()

    def _iterator(self, view: Callable[[MapEntry[K, V]], View]) -> MapIterator[View]:
        scope = self._scope()
        table = self._table

        def put(user_key: K, value: V) -> None:
            table.put(*scope, *self._frozen(scope[0], user_key, value))

        cells: Iterator[tuple[Any, Any]] = table.entries(*scope)
        entries = (MapEntry(user_key, self._thawed(cell), put) for user_key, cell in cells)
        return MapIterator(entries, view, lambda user_key: table.remove(*scope, user_key))

    def _frozen(self, key: Any, user_key: Any, value: Any) -> tuple[Any, Any]:
        try:
            if user_key is None:
                # The serializer decides whether ``None`` is a key.
                self._user_keys.to_arrow([None])
            else:
                user_key = self._own_user_key(user_key)
            return user_key, None if value is None else self._freeze(value)
        except UnsupportedStateError as error:
            raise self._misfit(key, error) from error


class MapEntry(Generic[K, V]):
    """
    Entry of a map state. Unpacks into the user key and the value.

    :param put: Writes a value to the state.
    """

    __slots__ = ("_put", "key", "value")

    def __init__(self, key: K, value: V, put: Callable[[K, V], None]) -> None:
        self.key = key
        self.value = value
        self._put = put

    def __iter__(self) -> Iterator[Any]:
        """Return the user key and the value."""
        return iter((self.key, self.value))

    def set_value(self, value: V) -> V:
        """Replace the value in the entry and in the state, and return the old value."""
        before = self.value
        self._put(self.key, value)
        self.value = value
        return before


class MapIterator(Generic[T]):
    """
    Iterator over a snapshot of the entries. It stays bound to the key that was current when it was created.

    :param entries: Entries to iterate over.
    :param view: Returns the item for an entry.
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
        """Return the iterator."""
        return self

    def __next__(self) -> T:
        """Return the next item."""
        self._last = None
        self._last = next(self._entries)
        return self._view(self._last)

    def remove(self) -> None:
        """
        Remove the entry of the last item from the state.

        :raises CoordinatorError: if ``next()`` was not called since the start or the last removal.
        """
        if self._last is None:
            raise CoordinatorError("Expected an entry to remove, found none; call next() before each remove().")
        self._remove(self._last.key)
        self._last = None
