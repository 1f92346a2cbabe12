"""A table of single values in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.state.backends.versioned_groups import Group, VersionedGroups
from airflow_provider_statecheck.state.keyed.tables import VOID_NAMESPACE

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
    from airflow_provider_statecheck.state.keys.key_batch import KeyBatch
    from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer


class HashStateTable:
    """
    Values in memory, as they are kept.

    :param state: What the values are.
    :param key_serializer: What the keys are.
    """

    def __init__(self, state: RegisteredState, key_serializer: KeySerializer) -> None:
        self.groups = VersionedGroups(dict)
        self._readable = self.groups.readable
        self._writable = self.groups.writable
        self._cells = state.cells
        self._key_serializer = key_serializer

    def get(self, key: Any, key_group: int, namespace: str) -> Any:
        """Return the value, or ``None`` where there is none."""
        try:
            return self._readable[namespace][key_group].get(key)
        except KeyError:
            return None

    def put(self, key: Any, key_group: int, namespace: str, value: Any) -> None:
        """Set the value, which is not ``None``."""
        try:
            self._writable[namespace][key_group][key] = value
        except KeyError:
            self.groups.own(namespace, key_group)[key] = value

    def remove(self, key: Any, key_group: int, namespace: str) -> None:
        """Remove the value; where there is none nothing happens."""
        if self.get(key, key_group, namespace) is None:
            return
        group = self.groups.own(namespace, key_group)
        del group[key]
        if not group:
            self.groups.drop(namespace, key_group)

    def keys(self, namespace: str) -> Iterator[Any]:
        """Return the keys that have a value, each once; changing the table meanwhile is allowed and not seen."""
        return self.groups.keys(namespace)

    def get_batch(self, keys: KeyBatch) -> Any:
        """Return an Arrow array of the values of distinct keys without namespace, null where there is none."""
        return self._cells.write([self.get(key, group, VOID_NAMESPACE) for key, group in self._keys_of(keys)])

    def put_batch(self, keys: KeyBatch, values: Any) -> None:
        """Set the values of distinct keys without namespace from an Arrow array; null removes."""
        cells = self._cells.read(values)
        for (key, key_group), cell in zip(self._keys_of(keys), cells, strict=True):
            if cell is None:
                self.remove(key, key_group, VOID_NAMESPACE)
            else:
                self.put(key, key_group, VOID_NAMESPACE, cell)

    def rows_of(self, group: Group) -> tuple[list[Any], None, list[Any]]:
        """Return the keys and the values of a group; there are no user keys."""
        return list(group), None, list(group.values())

    def restore(self, key_group: int, namespace: str, key: Any, user_key: None, cell: Any) -> None:
        """Set a restored value."""
        self.put(key, key_group, namespace, cell)

    def _keys_of(self, keys: KeyBatch) -> Iterator[tuple[Any, int]]:
        return zip(self._key_serializer.from_columns(keys.columns), keys.key_groups.to_pylist(), strict=True)
