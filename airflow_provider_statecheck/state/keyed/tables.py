"""
Table protocols of keyed state backends.

A table holds one keyed state in frozen form (:mod:`~airflow_provider_statecheck.state.serializers.nested_columns`).
Frozen values are immutable, except for the lists of a list state, which only that state modifies. A table has no
``None`` values: an empty value is an absent one, and reads create nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from airflow_provider_statecheck.state.keys.key_serializer import KeyBatch

VOID_NAMESPACE = ""
"""Namespace of state without a namespace."""


class StateTable(Protocol):
    """Table with one value per key and namespace."""

    def get(self, key: Any, key_group: int, namespace: str) -> Any:
        """Return the value, or ``None`` if there is none."""
        ...

    def put(self, key: Any, key_group: int, namespace: str, value: Any) -> None:
        """Set the value, which must not be ``None``."""
        ...

    def remove(self, key: Any, key_group: int, namespace: str) -> None:
        """Remove the value, if there is one."""
        ...

    def keys(self, namespace: str) -> Iterator[Any]:
        """Return the distinct keys that have a value; concurrent changes are allowed and not visible."""
        ...

    def get_batch(self, keys: KeyBatch) -> Any:
        """Return an Arrow array of the values of distinct keys without a namespace; null for a key without a value."""
        ...

    def put_batch(self, keys: KeyBatch, values: Any) -> None:
        """Set the values of distinct keys without a namespace from an Arrow array; null removes."""
        ...


class MapTable(Protocol):
    """Table with one map per key and namespace. Values may be ``None``, because the user key marks the entry."""

    def get(self, key: Any, key_group: int, namespace: str, user_key: Any) -> Any:
        """Return the value of an entry, or ``None`` if there is none."""
        ...

    def contains(self, key: Any, key_group: int, namespace: str, user_key: Any) -> bool:
        """Return whether there is an entry."""
        ...

    def put(self, key: Any, key_group: int, namespace: str, user_key: Any, value: Any) -> None:
        """Set an entry."""
        ...

    def remove(self, key: Any, key_group: int, namespace: str, user_key: Any) -> None:
        """Remove an entry, if there is one."""
        ...

    def entries(self, key: Any, key_group: int, namespace: str) -> Iterator[tuple[Any, Any]]:
        """Return the current entries; concurrent changes are allowed and not visible."""
        ...

    def is_empty(self, key: Any, key_group: int, namespace: str) -> bool:
        """Return whether the key has no entries."""
        ...

    def clear(self, key: Any, key_group: int, namespace: str) -> None:
        """Remove all entries of the key."""
        ...

    def keys(self, namespace: str) -> Iterator[Any]:
        """Return the distinct keys that have an entry; concurrent changes are allowed and not visible."""
        ...
