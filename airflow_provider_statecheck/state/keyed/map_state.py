"""Map states and their iterators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from airflow_provider_statecheck.exceptions import CoordinatorError, InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.state.keyed.registered_state import KeyContext, StateValues, no_key
from airflow_provider_statecheck.state.keyed.tables import MapTable

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


View = TypeVar("View")


class MapState(Generic[K, V]):
    """
    Entries by user key; a value may be ``None``, and without entries nothing is kept.

    :param table: Where the state is.
    :param context: The current key.
    :param namespace: In which this state is.
    :param values: How values become cells and come back.
    :param check_null_key: Refuses ``None`` as a user key if the serializer of the keys cannot write it.
    """

    __slots__ = ("_check_null_key", "_context", "_get", "_namespace", "_put", "_table", "_thaw", "_values")

    def __init__(
        self,
        table: MapTable,
        context: KeyContext,
        namespace: str,
        values: StateValues,
        check_null_key: Callable[[], Any],
    ) -> None:
        self._table = table
        self._context = context
        self._namespace = namespace
        self._values = values
        self._thaw = values.thaw
        self._check_null_key = check_null_key
        self._get = table.get
        self._put = table.put

    def get(self, user_key: K) -> V | None:
        """
        Return the value of a user key, or ``None``; to change it in place changes nothing in the state.

        :raises CoordinatorError: if there is no current key.
        """
        context = self._context
        if context.key_group < 0:
            raise no_key()
        value: V | None = self._get(context.key, context.key_group, self._namespace, user_key)
        thaw = self._thaw
        return value if thaw is None or value is None else thaw(value)

    def contains(self, user_key: K) -> bool:
        """
        Tell whether there is an entry, even one of ``None``.

        :raises CoordinatorError: if there is no current key.
        """
        return self._table.contains(*self._place(), user_key)

    def put(self, user_key: K, value: V | None) -> None:
        """
        Set an entry, as its value is now.

        :raises UnsupportedStateError: for a user key or a value of another type than the state's.
        :raises CoordinatorError: if there is no current key.
        """
        context = self._context
        if context.key_group < 0:
            raise no_key()
        self._put(context.key, context.key_group, self._namespace, *self._kept(context.key, user_key, value))

    def put_all(self, entries: Mapping[K, V | None]) -> None:
        """
        Set several entries, as their values are now.

        :raises InvalidConfigurationError: for ``None`` in place of a mapping.
        :raises UnsupportedStateError: for a user key or a value of another type than the state's; nothing is changed then.
        :raises CoordinatorError: if there is no current key.
        """
        place = self._place()
        if entries is None:
            raise InvalidConfigurationError("Expected a mapping of entries, found None; use clear() for no entries.")
        for kept in [self._kept(place[0], user_key, value) for user_key, value in entries.items()]:
            self._put(*place, *kept)

    def remove(self, user_key: K) -> None:
        """
        Remove an entry; where there is none nothing happens.

        :raises CoordinatorError: if there is no current key.
        """
        self._table.remove(*self._place(), user_key)

    def clear(self) -> None:
        """
        Remove what the current key has; other keys keep theirs.

        :raises CoordinatorError: if there is no current key.
        """
        self._table.clear(*self._place())

    def is_empty(self) -> bool:
        """
        Tell whether there is no entry.

        :raises CoordinatorError: if there is no current key.
        """
        return self._table.is_empty(*self._place())

    def entries(self) -> MapIterator[MapEntry[K, V]]:
        """
        Return the entries, none if there is nothing; each can be replaced or removed.

        :raises CoordinatorError: if there is no current key.
        """
        return self._iterator(lambda entry: entry)

    def keys(self) -> MapIterator[K]:
        """
        Return the user keys, none if there is nothing.

        :raises CoordinatorError: if there is no current key.
        """
        return self._iterator(lambda entry: entry.key)

    def values(self) -> MapIterator[V]:
        """
        Return the values, none if there is nothing.

        :raises CoordinatorError: if there is no current key.
        """
        return self._iterator(lambda entry: entry.value)

    def __iter__(self) -> MapIterator[MapEntry[K, V]]:
        """Return an iterator over the entries."""
        return self.entries()

    def _iterator(self, view: Callable[[MapEntry[K, V]], View]) -> MapIterator[View]:
        place = self._place()
        table = self._table

        def put(user_key: K, value: V) -> None:
            table.put(*place, *self._kept(place[0], user_key, value))

        found: Iterator[tuple[Any, Any]] = table.entries(*place)
        entries = (MapEntry(user_key, self._values.thawed(kept), put) for user_key, kept in found)
        return MapIterator(entries, view, lambda user_key: table.remove(*place, user_key))

    def _kept(self, key: Any, user_key: Any, value: Any) -> tuple[Any, Any]:
        values = self._values
        try:
            if user_key is None:
                self._check_null_key()
            elif values.own_user_key is not None:
                user_key = values.own_user_key(user_key)
            return user_key, None if value is None else values.freeze(value)
        except UnsupportedStateError as error:
            raise values.misfit(key, error) from error

    def _place(self) -> tuple[Any, int, str]:
        context = self._context
        if context.key_group < 0:
            raise no_key()
        return context.key, context.key_group, self._namespace
