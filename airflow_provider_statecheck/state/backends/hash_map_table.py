"""A table of map entries in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_provider_statecheck.state.backends.versioned_groups import Group, VersionedGroups

_NOTHING: dict[Any, Any] = {}


class HashMapTable:
    """Entries in memory, as they are kept; a key without entries is not there."""

    def __init__(self) -> None:
        self.groups = VersionedGroups(_copied)
        self._readable = self.groups.readable
        self._writable = self.groups.writable

    def get(self, key: Any, key_group: int, namespace: str, user_key: Any) -> Any:
        """Return the value of an entry, or ``None``."""
        try:
            return self._readable[namespace][key_group][key].get(user_key)
        except KeyError:
            return None

    def contains(self, key: Any, key_group: int, namespace: str, user_key: Any) -> bool:
        """Tell whether there is an entry."""
        return user_key in self._entries(key, key_group, namespace)

    def put(self, key: Any, key_group: int, namespace: str, user_key: Any, value: Any) -> None:
        """Set an entry."""
        try:
            self._writable[namespace][key_group][key][user_key] = value
        except KeyError:
            self.groups.own(namespace, key_group).setdefault(key, {})[user_key] = value

    def remove(self, key: Any, key_group: int, namespace: str, user_key: Any) -> None:
        """Remove an entry; where there is none nothing happens."""
        if not self.contains(key, key_group, namespace, user_key):
            return
        entries = self.groups.own(namespace, key_group)[key]
        del entries[user_key]
        if not entries:
            self.clear(key, key_group, namespace)

    def entries(self, key: Any, key_group: int, namespace: str) -> Iterator[tuple[Any, Any]]:
        """Return the entries as they are now; changing the table meanwhile is allowed and not seen."""
        return iter(list(self._entries(key, key_group, namespace).items()))

    def is_empty(self, key: Any, key_group: int, namespace: str) -> bool:
        """Tell whether a key has no entry."""
        return not self._entries(key, key_group, namespace)

    def clear(self, key: Any, key_group: int, namespace: str) -> None:
        """Remove all entries of a key."""
        if key not in self._readable.get(namespace, {}).get(key_group, {}):
            return
        group = self.groups.own(namespace, key_group)
        del group[key]
        if not group:
            self.groups.drop(namespace, key_group)

    def keys(self, namespace: str) -> Iterator[Any]:
        """Return the keys that have an entry, each once; changing the table meanwhile is allowed and not seen."""
        return self.groups.keys(namespace)

    def rows_of(self, group: Group) -> tuple[list[Any], list[Any], list[Any]]:
        """Return for each entry of a group its key, its user key and its value."""
        keys = [key for key, entries in group.items() for _ in entries]
        user_keys = [user_key for entries in group.values() for user_key in entries]
        return keys, user_keys, [value for entries in group.values() for value in entries.values()]

    def restore(self, key_group: int, namespace: str, key: Any, user_key: Any, cell: Any) -> None:
        """Set a restored entry."""
        self.put(key, key_group, namespace, user_key, cell)

    def _entries(self, key: Any, key_group: int, namespace: str) -> dict[Any, Any]:
        try:
            found: dict[Any, Any] = self._readable[namespace][key_group][key]
        except KeyError:
            return _NOTHING
        return found


def _copied(group: Group) -> Group:
    return {key: dict(entries) for key, entries in group.items()}
