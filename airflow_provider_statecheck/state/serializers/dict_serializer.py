"""Dictionaries as Arrow maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from types import NoneType
from typing import Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.state.serializers.base import AbstractSerializer
from airflow_provider_statecheck.state.serializers.compatibility import (
    kept_distinct,
    migrated,
    serializer_from_now_on,
    whole,
)
from airflow_provider_statecheck.state.serializers.freezing import Freezing
from airflow_provider_statecheck.state.serializers.lists import (
    entries_of_array,
    map_array,
    nulls_of,
    nulls_of_array,
    offsets_of,
    offsets_of_array,
)
from airflow_provider_statecheck.state.serializers.optional import is_immutable, require_no_none, resolve_part
from airflow_provider_statecheck.state.serializers.owning import own_of
from airflow_provider_statecheck.state.serializers.serializer import Compatibility, TypeSerializer
from airflow_provider_statecheck.state.serializers.snapshot_json import decode_snapshot, encode_snapshot


class DictSerializer(AbstractSerializer[dict[Any, Any]]):
    """
    Dictionaries, in the order of their entries.

    :param key: The serializer of a key, which is never ``None``.
    :param value: The serializer of a value.
    """

    class_id = "dict"

    def __init__(self, key: TypeSerializer[Any], value: TypeSerializer[Any]) -> None:
        self.key = key
        self.value = value

    @property
    def arrow_type(self) -> Any:
        """Return the type of maps."""
        import pyarrow as pa

        return pa.map_(self.key.arrow_type, self.value.arrow_type)

    def to_arrow(self, values: Sequence[dict[Any, Any] | None]) -> Any:
        """
        Return an Arrow array of maps, null where there is ``None``.

        :raises UnsupportedStateError: for what is no dictionary, or a key or value of another type.
        """
        for kind in {*map(type, values)} - {dict, NoneType}:
            raise UnsupportedStateError(f"Expected a dict, found {kind.__module__}.{kind.__qualname__}.")
        present = [value for value in values if value is not None]
        keys = self.key.to_arrow(list(chain.from_iterable(present)))
        items = self.value.to_arrow(list(chain.from_iterable(value.values() for value in present)))
        if keys.null_count:
            raise UnsupportedStateError("Expected each key of a dict to have a value, found None.")
        require_no_none(self.value, items, 0, "each value of a dict")
        return map_array(offsets_of(values), keys, items, nulls_of(values))

    def from_arrow(self, array: Any) -> list[dict[Any, Any] | None]:
        """Return the dictionaries of an array; each is new and may be changed."""
        keys, values = entries_of_array(array)
        pairs = list(zip(self.key.from_arrow(keys), self.value.from_arrow(values), strict=True))
        bounds = pairwise(offsets_of_array(array).to_pylist())
        valid = array.is_valid().to_pylist()
        return [dict(pairs[start:end]) if ok else None for ok, (start, end) in zip(valid, bounds, strict=True)]

    @property
    def is_immutable(self) -> bool:
        """Tell that no value can be shared."""
        return False

    def copy(self, value: Any) -> Any:
        """Return a dictionary that shares nothing with another that could be changed."""
        if value is None or is_immutable(self.value):
            return value if value is None else dict(value)
        return {key: self.value.copy(item) for key, item in value.items()}

    def own(self, value: Any) -> Any:
        """
        Return a dictionary as it comes back from a checkpoint, which shares nothing that could be changed with the one given.

        :raises UnsupportedStateError: for another mapping, or a key or a value of another type.
        """
        if type(value) is dict and None not in value:
            try:
                return dict(zip(map(own_of(self.key), value), map(own_of(self.value), value.values()), strict=True))
            except UnsupportedStateError:
                pass  # what follows says more of the value
        return super().own(value)

    def freezing(self) -> Freezing:
        """Return how dictionaries are kept: as dictionaries that the state alone has."""
        return Freezing(self.own, dict if is_immutable(self.value) else self.copy, self.from_arrow, self.to_arrow)

    def config(self) -> dict[str, Any]:
        """Return what keys and values are."""
        return {"key": encode_snapshot(self.key.snapshot()), "value": encode_snapshot(self.value.snapshot())}

    def _resolve(self, config: Mapping[str, Any]) -> Compatibility:
        key = kept_distinct(resolve_part(self.key, decode_snapshot(config["key"])), "keys of a dict")
        value = resolve_part(self.value, decode_snapshot(config["value"]))
        return whole(
            [("key of the dict", key), ("value of the dict", value)],
            lambda: DictSerializer(serializer_from_now_on(key, self.key), serializer_from_now_on(value, self.value)),
            lambda array: _converted(array, key, value),
        )

    @property
    def _identity(self) -> Any:
        return (self.key, self.value)


def _converted(array: Any, key: Compatibility, value: Compatibility) -> Any:
    keys, values = entries_of_array(array)
    offsets, nulls = offsets_of_array(array), nulls_of_array(array)
    return map_array(offsets, migrated(key, keys), migrated(value, values), nulls)
