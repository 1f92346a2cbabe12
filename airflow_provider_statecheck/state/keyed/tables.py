"""
The tables in which a backend keeps one keyed state; the rules of the states stand above them.

A table never holds ``None`` in place of a value: what is empty is not there, and reading makes nothing. It holds values as they
are kept (:mod:`~airflow_provider_statecheck.state.serializers.nested_columns`), which nobody changes; only the lists of a list state are
changed, by that state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from airflow_provider_statecheck.state.keys.key_serializer import KeyBatch

VOID_NAMESPACE = ""
"""The namespace of state that has none."""


class StateTable(Protocol):
    """One value for each key and namespace."""

    def get(self, key: Any, key_group: int, namespace: str) -> Any:
        """Return the value, or ``None`` where there is none."""
        ...

    def put(self, key: Any, key_group: int, namespace: str, value: Any) -> None:
        """Set the value, which is not ``None``."""
        ...

    def remove(self, key: Any, key_group: int, namespace: str) -> None:
        """Remove the value; where there is none nothing happens."""
        ...

    def keys(self, namespace: str) -> Iterator[Any]:
        """Return the keys that have a value, each once; changing the table meanwhile is allowed and not seen."""
        ...

    def get_batch(self, keys: KeyBatch) -> Any:
        """Return an Arrow array of the values of distinct keys without namespace, null where there is none."""
        ...

    def put_batch(self, keys: KeyBatch, values: Any) -> None:
        """Set the values of distinct keys without namespace from an Arrow array; null removes."""
        ...


class MapTable(Protocol):
    """Entries by user key for each key and namespace; a value may be ``None`` here, as an entry says that it is there."""

    def get(self, key: Any, key_group: int, namespace: str, user_key: Any) -> Any:
        """Return the value of an entry, or ``None``."""
        ...

    def contains(self, key: Any, key_group: int, namespace: str, user_key: Any) -> bool:
        """Tell whether there is an entry."""
        ...

    def put(self, key: Any, key_group: int, namespace: str, user_key: Any, value: Any) -> None:
        """Set an entry."""
        ...

    def remove(self, key: Any, key_group: int, namespace: str, user_key: Any) -> None:
        """Remove an entry; where there is none nothing happens."""
        ...

    def entries(self, key: Any, key_group: int, namespace: str) -> Iterator[tuple[Any, Any]]:
        """Return the entries as they are now; changing the table meanwhile is allowed and not seen."""
        ...

    def is_empty(self, key: Any, key_group: int, namespace: str) -> bool:
        """Tell whether a key has no entry."""
        ...

    def clear(self, key: Any, key_group: int, namespace: str) -> None:
        """Remove all entries of a key."""
        ...

    def keys(self, namespace: str) -> Iterator[Any]:
        """Return the keys that have an entry, each once; changing the table meanwhile is allowed and not seen."""
        ...
