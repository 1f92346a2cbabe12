"""User-defined serializers that store values as bytes, and values with a time to live."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.state.serializers.arrow_serializer import ArrowSerializer
from airflow_provider_statecheck.state.serializers.nested_columns import nulls_of, with_nulls
from airflow_provider_statecheck.state.serializers.serializer import (
    AS_IS,
    Compatibility,
    Freezing,
    SerializerSnapshot,
    TypeSerializer,
    incompatible,
)

T = TypeVar("T")

PREFIX = "custom:"
"""Prefix of the class ids of user-defined serializers in snapshots; it avoids collisions with built-in ids."""


@runtime_checkable
class CustomSerializer(Protocol[T]):
    """
    Serializer that a user defines to convert values to bytes and back.

    Two further methods are optional. ``config()`` returns JSON values. ``resolve_compatibility(old)`` receives the
    snapshot of an earlier version and returns a ``Compatibility``. Without it, any change of version or config is
    incompatible.
    """

    class_id: str
    """Identifier of the serializer in snapshots; a change makes stored state incompatible."""
    version: int
    """Version of the byte format."""

    def serialize(self, value: T) -> bytes:
        """Return a value as bytes."""

    def deserialize(self, data: bytes) -> T:
        """Return the value that the bytes encode."""


class OpaqueSerializer(ArrowSerializer):
    """Serializer that passes through the bytes of a user-defined serializer whose code is not available."""

    def __init__(self, snapshot: SerializerSnapshot) -> None:
        super().__init__(pa.binary())
        self._snapshot = snapshot

    def config(self) -> dict[str, Any]:
        return dict(self._snapshot.config)

    def snapshot(self) -> SerializerSnapshot:
        return self._snapshot

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        current = self._snapshot
        if old.class_id != current.class_id:
            return self._resolve_other(old)
        if (old.version, old.config) == (current.version, current.config):
            return AS_IS
        reason = f"{name_of(current)} changes from version {old.version} to {current.version}; its own code decides"
        return Compatibility(outcome=AS_IS.outcome, reason=reason)


class SerializerAdapter(TypeSerializer[Any]):
    """
    Adapter of a user-defined serializer to an Arrow column of bytes, which are also the frozen form of a value.

    :raises InvalidConfigurationError: if its ``class_id`` or ``version`` is missing or has another type.
    """

    is_immutable = False

    def __init__(self, custom: CustomSerializer[Any]) -> None:
        class_id: Any = custom.class_id
        version: Any = custom.version
        if not isinstance(class_id, str) or not class_id or type(version) is not int:
            raise InvalidConfigurationError(
                f"Expected the serializer {type(custom).__qualname__} to have a string as class_id and an integer as "
                f"version, found {class_id!r} and {version!r}."
            )
        self.custom = custom

    @property
    def arrow_type(self) -> Any:
        return pa.binary()

    def to_arrow(self, values: Sequence[Any]) -> Any:
        serialize = self.custom.serialize
        return pa.array([None if value is None else serialize(value) for value in values], self.arrow_type)

    def from_arrow(self, array: Any) -> list[Any]:
        deserialize = self.custom.deserialize
        return [None if data is None else deserialize(data) for data in array.to_pylist()]

    def copy(self, value: Any) -> Any:
        return self.custom.deserialize(self.custom.serialize(value))

    def freezing(self) -> Freezing:
        write = partial(pa.array, type=self.arrow_type)
        return Freezing(self.custom.serialize, self.custom.deserialize, pa.Array.to_pylist, write)

    def config(self) -> dict[str, Any]:
        config = getattr(self.custom, "config", None)
        return dict(config()) if config else {}

    def snapshot(self) -> SerializerSnapshot:
        class_id, version = f"{PREFIX}{self.custom.class_id}", self.custom.version
        return SerializerSnapshot(class_id=class_id, version=version, config=self.config())

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        current = self.snapshot()
        if old.class_id != current.class_id:
            return self._resolve_other(old)
        decide = getattr(self.custom, "resolve_compatibility", None)
        if decide is not None:
            return _adapted(decide(replace(old, class_id=name_of(old))))
        if (old.version, old.config) == (current.version, current.config):
            return AS_IS
        return incompatible(
            f"{name_of(current)} was of version {old.version} and config {dict(old.config)}, is now of version "
            f"{current.version} and config {dict(current.config)}; define its resolve_compatibility"
        )


def migrate_each(convert: Callable[[bytes], bytes]) -> Callable[[Any], Any]:
    """Return a ``migrate`` function for ``Compatibility`` that converts the bytes of each value."""

    def migrate(array: Any) -> Any:
        return pa.array([None if data is None else convert(data) for data in array.to_pylist()], pa.binary())

    return migrate


def name_of(snapshot: SerializerSnapshot) -> str:
    """Return the class id that the user chose, without the prefix."""
    return snapshot.class_id.removeprefix(PREFIX)


def is_custom(snapshot: SerializerSnapshot) -> bool:
    """Return whether a snapshot belongs to a user-defined serializer."""
    return snapshot.class_id.startswith(PREFIX)


def _adapted(verdict: Compatibility) -> Compatibility:
    if verdict.serializer is None:
        return verdict
    return replace(
        verdict, serializer=SerializerAdapter(verdict.serializer), migrate=verdict.migrate or (lambda array: array)
    )


class TtlValue(NamedTuple):
    """Value of state with a time to live, and the time of its last access in milliseconds since the epoch."""

    value: Any
    last_access_ms: int


_ttl_value = partial(tuple.__new__, TtlValue)


class TtlSerializer(TypeSerializer[TtlValue]):
    """
    Serializer of a value and the time of its last access as a struct.

    It has no snapshot of its own, because the schema of a state has its time to live.

    :param inner: The serializer of the value; values of map state may be ``None``.
    """

    def __init__(self, inner: TypeSerializer[Any]) -> None:
        self.inner = inner

    @property
    def arrow_type(self) -> Any:
        return pa.struct([("value", self.inner.arrow_type), ("last_access_ms", pa.int64())])

    def to_arrow(self, values: Sequence[TtlValue | None]) -> Any:
        return self._structs_of(values, self.inner.to_arrow)

    def from_arrow(self, array: Any) -> list[TtlValue | None]:
        return self._with_times(self.inner.from_arrow(array.field(0)), array)

    def freezing(self) -> Freezing:
        inner = self.inner.freezing()
        return Freezing(
            lambda value: TtlValue(inner.freeze(value.value), value.last_access_ms),
            None if inner.thaw is None else lambda frozen: TtlValue(inner.thawed(frozen.value), frozen.last_access_ms),
            lambda array: self._with_times(inner.read(array.field(0)), array),
            lambda frozen: self._structs_of(frozen, inner.write),
        )

    def _structs_of(self, values: Sequence[Any], write: Callable[[Sequence[Any]], Any]) -> Any:
        inner = write([None if value is None else value[0] for value in values])
        times = pa.array([None if value is None else value[1] for value in values], pa.int64())
        return pa.StructArray.from_arrays([inner, times], fields=list(self.arrow_type), mask=nulls_of(values))

    def _with_times(self, values: list[Any], array: Any) -> list[TtlValue | None]:
        return with_nulls(array, list(map(_ttl_value, zip(values, array.field(1).to_pylist(), strict=True))))
