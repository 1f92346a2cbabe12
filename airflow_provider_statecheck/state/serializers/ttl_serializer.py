"""Serializer of values with a time to live."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from airflow_provider_statecheck.state.serializers.nested_columns import (
    Freezing,
    freezing_of,
    is_immutable,
    nulls_of,
    nulls_of_array,
)
from airflow_provider_statecheck.state.serializers.serializer import (
    Compatibility,
    Outcome,
    SerializerSnapshot,
    TypeSerializer,
    after_migration,
    decode_snapshot,
    encode_snapshot,
    migrated,
    reconfigured,
    require_known_version,
)

CLASS_ID = "ttl"
_VERSION = 1


class TtlValue(NamedTuple):
    """Value of state with a time to live, and the time of its last access in milliseconds since the epoch."""

    value: Any
    last_access_ms: int


_ttl_value = partial(tuple.__new__, TtlValue)


class TtlSerializer:
    """
    Serializer of a value and the time of its last access as a struct.

    :param inner: The serializer of the value; values of map state may be ``None``.
    """

    def __init__(self, inner: TypeSerializer[Any]) -> None:
        self.inner = inner

    @property
    def arrow_type(self) -> Any:
        """Return the Arrow struct type of a value and a time."""
        import pyarrow as pa

        return pa.struct([("value", self.inner.arrow_type), ("last_access_ms", pa.int64())])

    @property
    def is_immutable(self) -> bool:
        """Return whether values are immutable and can be shared."""
        return is_immutable(self.inner)

    def to_arrow(self, values: Sequence[TtlValue | None]) -> Any:
        """
        Return an Arrow array of structs, with null for ``None``.

        :raises UnsupportedStateError: if a value has another type.
        """
        return self._structs_of(values, self.inner.to_arrow)

    def from_arrow(self, array: Any) -> list[TtlValue | None]:
        """Return the values of an array as new objects."""
        return self._with_times(self.inner.from_arrow(array.field(0)), array)

    def copy(self, value: TtlValue) -> TtlValue:
        """Return a copy of a value that shares no mutable object with it."""
        if self.is_immutable or value.value is None:
            return value
        return TtlValue(self.inner.copy(value.value), value.last_access_ms)

    def freezing(self) -> Freezing:
        """Return the frozen form: the frozen form of the inner value with its time of last access."""
        inner = freezing_of(self.inner)
        return Freezing(
            lambda value: TtlValue(inner.freeze(value.value), value.last_access_ms),
            None if inner.thaw is None else lambda frozen: TtlValue(inner.thawed(frozen.value), frozen.last_access_ms),
            lambda array: self._with_times(inner.read(array.field(0)), array),
            lambda frozen: self._structs_of(frozen, inner.write),
        )

    def snapshot(self) -> SerializerSnapshot:
        """Return the snapshot that later versions are compared with."""
        config = {"value": encode_snapshot(self.inner.snapshot())}
        return SerializerSnapshot(class_id=CLASS_ID, version=_VERSION, config=config)

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        """Compare the inner serializers; state without access times is incompatible, as its times are unknown."""
        if old.class_id != CLASS_ID:
            return Compatibility(outcome=Outcome.INCOMPATIBLE, reason="had no times of last use")
        require_known_version(old, _VERSION)
        return _keeping_times(self.inner.resolve_compatibility(decode_snapshot(old.config["value"])))

    def _structs_of(self, values: Sequence[Any], write: Callable[[Sequence[Any]], Any]) -> Any:
        import pyarrow as pa

        inner = write([None if value is None else value[0] for value in values])
        times = pa.array([None if value is None else value[1] for value in values], pa.int64())
        return _structs(inner, times, nulls_of(values))

    def _with_times(self, values: list[Any], array: Any) -> list[TtlValue | None]:
        found: list[TtlValue | None] = list(map(_ttl_value, zip(values, array.field(1).to_pylist(), strict=True)))
        if array.null_count:
            return [item if valid else None for item, valid in zip(found, array.is_valid().to_pylist(), strict=True)]
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TtlSerializer) and self.inner == other.inner

    def __hash__(self) -> int:
        return hash((CLASS_ID, self.inner))


def _keeping_times(inner: Compatibility) -> Compatibility:
    """Return the verdict on structs for the verdict on their inner values."""

    def migrate(array: Any) -> Any:
        return _structs(migrated(inner, array.field(0)), array.field(1), nulls_of_array(array))

    if inner.outcome is Outcome.COMPATIBLE_AFTER_MIGRATION:
        return after_migration(inner.reason, migrate, merges=inner.merges)
    if inner.serializer is not None:
        return reconfigured(inner.reason, TtlSerializer(inner.serializer), migrate)
    return inner


def _structs(values: Any, times: Any, nulls: Any) -> Any:
    import pyarrow as pa

    return pa.StructArray.from_arrays([values, times], names=["value", "last_access_ms"], mask=nulls)
