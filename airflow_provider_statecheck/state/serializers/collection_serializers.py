"""Serializers of lists, tuples, sets and dictionaries as Arrow lists and maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain, pairwise
from types import NoneType
from typing import Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.state.serializers.base import (
    AbstractSerializer,
    Own,
    own_of,
    own_through_arrow,
    plain_of,
)
from airflow_provider_statecheck.state.serializers.nested_columns import (
    Freezing,
    entries_of_array,
    is_immutable,
    list_array,
    map_array,
    nulls_of,
    nulls_of_array,
    offsets_of,
    offsets_of_array,
    require_no_none,
    resolve_part,
    with_elements,
)
from airflow_provider_statecheck.state.serializers.serializer import (
    Compatibility,
    TypeSerializer,
    decode_snapshot,
    encode_snapshot,
    incompatible,
    kept_distinct,
    migrated,
    serializer_from_now_on,
    whole,
)

COLLECTIONS: dict[str, type] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
"""Supported collection classes by the name that snapshots store."""


class CollectionSerializer(AbstractSerializer[Any]):
    """
    Serializer of collections whose elements have one type.

    :param collection: A class of :data:`COLLECTIONS`; another class is incompatible with stored state.
    :param element: The serializer of the elements.
    """

    class_id = "collection"

    def __init__(self, collection: type, element: TypeSerializer[Any]) -> None:
        self.collection = collection
        self.element = element

    @property
    def arrow_type(self) -> Any:
        """Return the Arrow list type."""
        import pyarrow as pa

        return pa.list_(self.element.arrow_type)

    def to_arrow(self, values: Sequence[Any]) -> Any:
        """
        Return an Arrow array of lists, with null for ``None``.

        :raises UnsupportedStateError: if a collection has another class or an element has another type.
        """
        for kind in {*map(type, values)} - {self.collection, NoneType}:
            raise UnsupportedStateError(
                f"Expected a {self.collection.__name__}, found {kind.__module__}.{kind.__qualname__}."
            )
        elements = self.element.to_arrow(list(chain.from_iterable(value for value in values if value is not None)))
        require_no_none(self.element, elements, 0, f"each element of a {self.collection.__name__}")
        return list_array(offsets_of(values), elements, nulls_of(values))

    def from_arrow(self, array: Any) -> list[Any]:
        """Return the collections of an array as new objects."""
        elements = self.element.from_arrow(array.flatten())
        lists = [elements[start:end] for start, end in pairwise(offsets_of_array(array).to_pylist())]
        found: list[Any] = lists if self.collection is list else list(map(self.collection, lists))
        if array.null_count:
            return [value if valid else None for value, valid in zip(found, array.is_valid().to_pylist(), strict=True)]
        return found

    @property
    def is_immutable(self) -> bool:
        """Return whether values are immutable and can be shared."""
        return self.collection in (tuple, frozenset) and is_immutable(self.element)

    def copy(self, value: Any) -> Any:
        """Return a copy of a collection that shares no mutable object with it."""
        if value is None or self.is_immutable:
            return value
        return self.collection(value if is_immutable(self.element) else map(self.element.copy, value))

    @cached_property
    def own(self) -> Own:
        """
        Return the function that validates and copies a collection; it is fast if the elements have a cheap test.

        The function raises ``UnsupportedStateError`` for another collection class or element type.
        """
        plain = plain_of(self.element)
        if plain is None:
            return self._validated
        kind: Any = self.collection
        own, all_fit, is_shared = self._validated, plain.all_fit, self.is_immutable

        def owned(value: Any) -> Any:
            if type(value) is not kind or not all_fit(value):
                return own(value)
            return value if is_shared else kind(value)

        return owned

    def freezing(self) -> Freezing:
        """Return the frozen form: a copy of the collection that only the state references."""
        thaw = self.collection if is_immutable(self.element) else self.copy
        return Freezing(self.own, None if self.is_immutable else thaw, self.from_arrow, self.to_arrow)

    def config(self) -> dict[str, Any]:
        """Return the collection class and the snapshot of the elements."""
        return {"collection": self.collection.__name__, "element": encode_snapshot(self.element.snapshot())}

    def _resolve(self, config: Mapping[str, Any]) -> Compatibility:
        name = self.collection.__name__
        if config["collection"] != name:
            return incompatible(f"was a {config['collection']}, is now a {name}")
        element = resolve_part(self.element, decode_snapshot(config["element"]))
        if self.collection in (set, frozenset):
            element = kept_distinct(element, f"elements of a {name}")
        return whole(
            [(f"element of the {name}", element)],
            lambda: CollectionSerializer(self.collection, serializer_from_now_on(element, self.element)),
            lambda array: with_elements(array, migrated(element, array.flatten())),
        )

    def _validated(self, value: Any) -> Any:
        kind: Any = self.collection
        if type(value) is kind:
            try:
                return kind(map(own_of(self.element), value))
            except UnsupportedStateError:
                pass  # The conversion to Arrow raises the detailed error.
        return own_through_arrow(self, value)

    def __getstate__(self) -> dict[str, Any]:
        return {"collection": self.collection, "element": self.element}

    @property
    def _identity(self) -> Any:
        return (self.collection, self.element)


class DictSerializer(AbstractSerializer[dict[Any, Any]]):
    """
    Serializer of dictionaries; it preserves the order of entries.

    :param key: The serializer of the keys, which are never ``None``.
    :param value: The serializer of the values.
    """

    class_id = "dict"

    def __init__(self, key: TypeSerializer[Any], value: TypeSerializer[Any]) -> None:
        self.key = key
        self.value = value

    @property
    def arrow_type(self) -> Any:
        """Return the Arrow map type."""
        import pyarrow as pa

        return pa.map_(self.key.arrow_type, self.value.arrow_type)

    def to_arrow(self, values: Sequence[dict[Any, Any] | None]) -> Any:
        """
        Return an Arrow array of maps, with null for ``None``.

        :raises UnsupportedStateError: if a value is not a ``dict``, or a key or an item has another type.
        """
        for kind in {*map(type, values)} - {dict, NoneType}:
            raise UnsupportedStateError(f"Expected a dict, found {kind.__module__}.{kind.__qualname__}.")
        present = [value for value in values if value is not None]
        keys = self.key.to_arrow(list(chain.from_iterable(present)))
        items = self.value.to_arrow(list(chain.from_iterable(value.values() for value in present)))
        if keys.null_count:
            raise UnsupportedStateError("Expected no key of a dict to be None, found None; leave the entry out.")
        require_no_none(self.value, items, 0, "each value of a dict")
        return map_array(offsets_of(values), keys, items, nulls_of(values))

    def from_arrow(self, array: Any) -> list[dict[Any, Any] | None]:
        """Return the dictionaries of an array as new objects."""
        keys, values = entries_of_array(array)
        pairs = list(zip(self.key.from_arrow(keys), self.value.from_arrow(values), strict=True))
        bounds = pairwise(offsets_of_array(array).to_pylist())
        valid = array.is_valid().to_pylist()
        return [dict(pairs[start:end]) if ok else None for ok, (start, end) in zip(valid, bounds, strict=True)]

    @property
    def is_immutable(self) -> bool:
        """Return ``False``, since dictionaries are mutable."""
        return False

    def copy(self, value: Any) -> Any:
        """Return a copy of a dictionary that shares no mutable object with it."""
        if value is None or is_immutable(self.value):
            return value if value is None else dict(value)
        return {key: self.value.copy(item) for key, item in value.items()}

    def own(self, value: Any) -> Any:
        """
        Return a dictionary as a checkpoint restores it, without any mutable object of the given one.

        :raises UnsupportedStateError: if the value is not a ``dict``, or a key or an item has another type.
        """
        if type(value) is dict and None not in value:
            try:
                return dict(zip(map(own_of(self.key), value), map(own_of(self.value), value.values()), strict=True))
            except UnsupportedStateError:
                pass  # The conversion to Arrow raises the detailed error.
        return super().own(value)

    def freezing(self) -> Freezing:
        """Return the frozen form: a copy of the dictionary that only the state references."""
        return Freezing(self.own, dict if is_immutable(self.value) else self.copy, self.from_arrow, self.to_arrow)

    def config(self) -> dict[str, Any]:
        """Return the snapshots of the keys and the values."""
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
