"""How elements of one operator state become columns, and come back from columns of an earlier version."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_statecheck.state.descriptors import ListStateDescriptor, MapStateDescriptor
from airflow_provider_statecheck.state.keyed.registration import compatibility_of, compatibility_of_keys
from airflow_provider_statecheck.state.operator.written_elements import KEY, VALUE, WrittenElements
from airflow_provider_statecheck.state.serializers.compatibility import serializer_from_now_on
from airflow_provider_statecheck.state.serializers.optional import is_immutable
from airflow_provider_statecheck.state.serializers.owning import own_of
from airflow_provider_statecheck.state.serializers.serializer import (
    Compatibility,
    Outcome,
    SerializerSnapshot,
    TypeSerializer,
)


@dataclass(frozen=True, slots=True)
class ElementSerializers:
    """The serializers of a list, which has no keys, or of a broadcast map."""

    state: str
    """Its name, for errors."""
    key: TypeSerializer[Any] | None
    value: TypeSerializer[Any]

    @classmethod
    def of(cls, descriptor: ListStateDescriptor[Any] | MapStateDescriptor[Any]) -> ElementSerializers:
        """Return those that a descriptor names."""
        return cls(descriptor.name, descriptor.key_serializer, descriptor.serializer)

    def snapshots(self) -> tuple[SerializerSnapshot | None, SerializerSnapshot]:
        """Return what keys and values are written with."""
        return None if self.key is None else self.key.snapshot(), self.value.snapshot()

    def write(self, elements: Sequence[Any]) -> WrittenElements:
        """
        Return elements as columns; entries of a map are pairs.

        :raises UnsupportedStateError: for an element of another type.
        """
        import pyarrow as pa

        key, value = self.snapshots()
        if self.key is None:
            return WrittenElements(key, value, pa.table({VALUE: self.value.to_arrow(elements)}))
        keys, values = [entry[0] for entry in elements], [entry[1] for entry in elements]
        columns = {KEY: self.key.to_arrow(keys), VALUE: self.value.to_arrow(values)}
        return WrittenElements(key, value, pa.table(columns))

    def own(self, value: Any) -> Any:
        """
        Return what the state keeps of an element, or of a value of a map.

        :raises UnsupportedStateError: for one of another type.
        """
        return None if value is None else own_of(self.value)(value)

    def own_entry(self, key: Any, value: Any) -> tuple[Any, Any]:
        """
        Return what the state keeps of an entry of a map.

        :raises UnsupportedStateError: for a key or a value of another type.
        """
        return key if self.key is None else own_of(self.key)(key), self.own(value)

    def copy(self, value: Any) -> Any:
        """Return an element, or a value of a map, for a reader, who may change it."""
        return value if value is None or is_immutable(self.value) else self.value.copy(value)

    def read(self, written: WrittenElements) -> list[Any]:
        """
        Return elements from their columns, migrated if need be.

        :raises StateMigrationError: if they cannot go on with these serializers.
        """
        verdict = compatibility_of(self.state, self.value, written.value)
        values = _elements(verdict, self.value, written.column(VALUE))
        if self.key is None or written.key is None:
            return values
        keys = compatibility_of_keys(self.state, self.key, written.key)
        return list(zip(_elements(keys, self.key, written.column(KEY)), values, strict=True))

    def reconfigured(self, pieces: Iterable[WrittenElements]) -> ElementSerializers:
        """
        Return the serializers to use from now on, after a look at all that was written.

        :raises StateMigrationError: if any of it cannot go on with these serializers.
        """
        found = self
        for piece in pieces:
            verdict = compatibility_of(self.state, found.value, piece.value)
            found = replace(found, value=serializer_from_now_on(verdict, found.value))
            if found.key is not None and piece.key is not None:
                verdict = compatibility_of_keys(self.state, found.key, piece.key)
                found = replace(found, key=serializer_from_now_on(verdict, found.key))
        return found


def _elements(verdict: Compatibility, serializer: TypeSerializer[Any], array: Any) -> list[Any]:
    if verdict.outcome is Outcome.COMPATIBLE_AFTER_MIGRATION and verdict.migrate is not None:
        array = verdict.migrate(array)
    return serializer_from_now_on(verdict, serializer).from_arrow(array)
