"""Expiry of keyed state by time to live."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from airflow_provider_statecheck.lazy import pa, pc
from airflow_provider_statecheck.state.descriptors import StateTtlConfig, StateVisibility, UpdateType
from airflow_provider_statecheck.state.keyed.registered_state import MapTable, StateTable
from airflow_provider_statecheck.state.keys.key_serializer import KeyBatch
from airflow_provider_statecheck.state.serializers.custom_serializer import TtlValue
from airflow_provider_statecheck.state.serializers.nested_columns import with_elements


class TimeToLive:
    """
    Expiry and renewal of values.

    :param now_ms: Returns the current time in milliseconds.
    """

    __slots__ = ("_lifetime", "_now_ms", "renews_on_read", "shows_expired")

    def __init__(self, config: StateTtlConfig, now_ms: Callable[[], int]) -> None:
        self._lifetime = config.ttl_ms
        self._now_ms = now_ms
        self.renews_on_read = config.update_type is UpdateType.ON_READ_AND_WRITE
        self.shows_expired = config.state_visibility is StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP

    def stamped(self, value: Any) -> TtlValue:
        """Return a value with the current time as its last use."""
        return TtlValue(value, self._now_ms())

    def is_expired(self, stored: TtlValue) -> bool:
        """Return whether a stored value is expired."""
        return stored.last_access_ms + self._lifetime <= self._now_ms()

    def after_read(self, stored: list[TtlValue]) -> list[TtlValue]:
        """Return the live values after a read; the same list if nothing changes."""
        live = [value for value in stored if not self.is_expired(value)]
        if self.renews_on_read:
            return [self.stamped(value.value) for value in live]
        return stored if len(live) == len(stored) else live

    def stamped_column(self, values: Any) -> Any:
        """Return an Arrow array of values with the current time as their last use; null stays null."""
        times = pa.repeat(pa.scalar(self._now_ms(), pa.int64()), len(values))
        return pa.StructArray.from_arrays([values, times], names=["value", "last_access_ms"], mask=pc.is_null(values))

    def expired_column(self, stored: Any) -> Any:
        """Return a boolean Arrow array that marks expired values; ``False`` for null."""
        oldest = self._now_ms() - self._lifetime
        return pc.fill_null(pc.less_equal(pc.struct_field(stored, "last_access_ms"), oldest), False)


class TtlCells:
    """
    State table that hides expired values and removes those that it reads.

    :param table: Table of ``TtlValue``.
    """

    def __init__(self, table: StateTable, time_to_live: TimeToLive) -> None:
        self._table = table
        self._ttl = time_to_live
        self.remove = table.remove

    def get(self, key: Any, key_group: int, namespace: str) -> Any:
        """Return the value, or ``None`` if there is none or it is expired."""
        stored = self._table.get(key, key_group, namespace)
        if stored is None:
            return None
        if self._ttl.is_expired(stored):
            self.remove(key, key_group, namespace)
            return stored.value if self._ttl.shows_expired else None
        if self._ttl.renews_on_read:
            self.put(key, key_group, namespace, stored.value)
        return stored.value

    def put(self, key: Any, key_group: int, namespace: str, value: Any) -> None:
        self._table.put(key, key_group, namespace, self._ttl.stamped(value))

    def get_batch(self, keys: KeyBatch) -> Any:
        """Return an Arrow array of the values of distinct keys; null for a key without a visible value."""
        stored = self._table.get_batch(keys)
        expired, values = self._ttl.expired_column(stored), pc.struct_field(stored, "value")
        # take() returns null for a null index, whatever the type.
        rows = pc.if_else(expired, pa.scalar(None, pa.int64()), pa.array(range(len(stored)), pa.int64()))
        live = values.take(rows) if expired.true_count else values
        if self._ttl.renews_on_read:
            self._table.put_batch(keys, self._ttl.stamped_column(live))
        elif expired.true_count:
            expired_keys = keys.take(pc.indices_nonzero(expired))
            self._table.put_batch(expired_keys, pa.nulls(len(expired_keys), stored.type))
        return values if self._ttl.shows_expired else live

    def put_batch(self, keys: KeyBatch, values: Any) -> None:
        """Set the values of distinct keys with the current time; null removes."""
        self._table.put_batch(keys, self._ttl.stamped_column(values))


class TtlEntries:
    """
    Map table that hides expired entries and removes those that it reads.

    :param table: Table of ``TtlValue``.
    """

    def __init__(self, table: MapTable, time_to_live: TimeToLive) -> None:
        self._table = table
        self._ttl = time_to_live
        self.remove = table.remove
        self.clear = table.clear

    def get(self, key: Any, key_group: int, namespace: str, user_key: Any) -> Any:
        """Return the value of an entry, or ``None`` if there is none or it is expired."""
        stored = self._table.get(key, key_group, namespace, user_key)
        if stored is None or not self._is_visible(key, key_group, namespace, user_key, stored):
            return None
        return stored.value

    def contains(self, key: Any, key_group: int, namespace: str, user_key: Any) -> bool:
        """Return whether there is a visible entry."""
        stored = self._table.get(key, key_group, namespace, user_key)
        return stored is not None and self._is_visible(key, key_group, namespace, user_key, stored)

    def put(self, key: Any, key_group: int, namespace: str, user_key: Any, value: Any) -> None:
        self._table.put(key, key_group, namespace, user_key, self._ttl.stamped(value))

    def entries(self, key: Any, key_group: int, namespace: str) -> Iterator[tuple[Any, Any]]:
        """Return the visible entries. Each is read when the iterator reaches it."""
        entries = self._table.entries(key, key_group, namespace)
        return (
            (user_key, stored.value)
            for user_key, stored in entries
            if self._is_visible(key, key_group, namespace, user_key, stored)
        )

    def is_empty(self, key: Any, key_group: int, namespace: str) -> bool:
        """Return whether the key has no visible entry."""
        return next(self.entries(key, key_group, namespace), None) is None

    def _is_visible(self, key: Any, key_group: int, namespace: str, user_key: Any, stored: TtlValue) -> bool:
        if self._ttl.is_expired(stored):
            self.remove(key, key_group, namespace, user_key)
            return self._ttl.shows_expired
        if self._ttl.renews_on_read:
            self.put(key, key_group, namespace, user_key, stored.value)
        return True


def timed_cells(values: Any, times: Any) -> Any:
    """
    Return the cells of a state with a time to live.

    :param values: Array of values, or of lists of them.
    :param times: Times of the last access in milliseconds, or lists of them with equal lengths.
    """
    if pa.types.is_list(times.type):
        return with_elements(values, timed_cells(values.flatten(), times.flatten()))
    # A value without a time is no value.
    nulls = times.is_null() if times.null_count else None
    return pa.StructArray.from_arrays([values, times], names=["value", "last_access_ms"], mask=nulls)
