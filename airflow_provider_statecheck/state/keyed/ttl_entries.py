"""A table of map entries that expire one by one, above the table that keeps them with their times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_provider_statecheck.state.keyed.tables import MapTable
from airflow_provider_statecheck.state.keyed.time_to_live import TimeToLive
from airflow_provider_statecheck.state.serializers.ttl_serializer import TtlValue


class TtlEntries:
    """
    Shows the entries that are not expired; what is found expired is removed.

    :param table: Holds a ``TtlValue`` for each value.
    :param time_to_live: What expires when.
    """

    def __init__(self, table: MapTable, time_to_live: TimeToLive) -> None:
        self._table = table
        self._ttl = time_to_live

    def get(self, key: Any, key_group: int, namespace: str, user_key: Any) -> Any:
        """Return the value of an entry, or ``None`` where there is none that can be seen."""
        stored = self._table.get(key, key_group, namespace, user_key)
        if stored is None or not self._is_seen(key, key_group, namespace, user_key, stored):
            return None
        return stored.value

    def contains(self, key: Any, key_group: int, namespace: str, user_key: Any) -> bool:
        """Tell whether there is an entry that can be seen."""
        stored = self._table.get(key, key_group, namespace, user_key)
        return stored is not None and self._is_seen(key, key_group, namespace, user_key, stored)

    def put(self, key: Any, key_group: int, namespace: str, user_key: Any, value: Any) -> None:
        """Set an entry, which lives from now on."""
        self._table.put(key, key_group, namespace, user_key, self._ttl.stamped(value))

    def remove(self, key: Any, key_group: int, namespace: str, user_key: Any) -> None:
        """Remove an entry."""
        self._table.remove(key, key_group, namespace, user_key)

    def entries(self, key: Any, key_group: int, namespace: str) -> Iterator[tuple[Any, Any]]:
        """Return the entries that can be seen; each is read when the iterator comes to it."""
        found = self._table.entries(key, key_group, namespace)
        return (
            (user_key, stored.value)
            for user_key, stored in found
            if self._is_seen(key, key_group, namespace, user_key, stored)
        )

    def is_empty(self, key: Any, key_group: int, namespace: str) -> bool:
        """Tell whether a key has no entry that can be seen."""
        return next(self.entries(key, key_group, namespace), None) is None

    def clear(self, key: Any, key_group: int, namespace: str) -> None:
        """Remove all entries of a key."""
        self._table.clear(key, key_group, namespace)

    def keys(self, namespace: str) -> Iterator[Any]:
        """Return the keys that have an entry, expired ones that nobody read included."""
        return self._table.keys(namespace)

    def _is_seen(self, key: Any, key_group: int, namespace: str, user_key: Any, stored: TtlValue) -> bool:
        if self._ttl.is_expired(stored):
            self._table.remove(key, key_group, namespace, user_key)
            return self._ttl.shows_expired
        renewed = self._ttl.renewed(stored)
        if renewed is not stored:
            self._table.put(key, key_group, namespace, user_key, renewed)
        return True
