"""A table of values that expire, above the table that keeps them with their times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_provider_statecheck.state.keyed.tables import StateTable
from airflow_provider_statecheck.state.keyed.time_to_live import TimeToLive
from airflow_provider_statecheck.state.keys.key_batch import KeyBatch


class TtlCells:
    """
    Shows the values that are not expired; what is found expired is removed.

    :param table: Holds a ``TtlValue`` for each value.
    :param time_to_live: What expires when.
    """

    def __init__(self, table: StateTable, time_to_live: TimeToLive) -> None:
        self._table = table
        self._ttl = time_to_live

    def get(self, key: Any, key_group: int, namespace: str) -> Any:
        """Return the value, or ``None`` where there is none that can be seen."""
        stored = self._table.get(key, key_group, namespace)
        if stored is None:
            return None
        if self._ttl.is_expired(stored):
            self._table.remove(key, key_group, namespace)
            return stored.value if self._ttl.shows_expired else None
        renewed = self._ttl.renewed(stored)
        if renewed is not stored:
            self._table.put(key, key_group, namespace, renewed)
        return stored.value

    def put(self, key: Any, key_group: int, namespace: str, value: Any) -> None:
        """Set the value, which lives from now on."""
        self._table.put(key, key_group, namespace, self._ttl.stamped(value))

    def remove(self, key: Any, key_group: int, namespace: str) -> None:
        """Remove the value."""
        self._table.remove(key, key_group, namespace)

    def keys(self, namespace: str) -> Iterator[Any]:
        """Return the keys that have a value, expired ones that nobody read included."""
        return self._table.keys(namespace)

    def get_batch(self, keys: KeyBatch) -> Any:
        """Return an Arrow array of the values of distinct keys, null where there is none that can be seen."""
        stored = self._table.get_batch(keys)
        expired = self._ttl.expired_column(stored)
        self._after_read(keys, stored, expired)
        return self._ttl.visible_column(stored, expired)

    def put_batch(self, keys: KeyBatch, values: Any) -> None:
        """Set the values of distinct keys, which live from now on; null removes."""
        self._table.put_batch(keys, self._ttl.stamped_column(values))

    def _after_read(self, keys: KeyBatch, stored: Any, expired: Any) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._ttl.renews_on_read:
            live = self._ttl.unexpired_column(stored, expired)
            self._table.put_batch(keys, self._ttl.stamped_column(live))
        elif expired.true_count:
            columns = tuple(pc.filter(column, expired) for column in keys.columns)
            gone = KeyBatch(pc.filter(keys.key_groups, expired), columns)
            self._table.put_batch(gone, pa.nulls(len(gone), stored.type))
