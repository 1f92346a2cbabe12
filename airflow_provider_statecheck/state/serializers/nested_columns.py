"""
Optional values, lists and maps as Arrow columns, and frozen containers.

Whatever can be changed is taken apart or copied when it is put and when it is read, so a change made in place never reaches
the state. What cannot be changed is kept and handed out as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.state.serializers.base import own_of
from airflow_provider_statecheck.state.serializers.serializer import (
    Compatibility,
    Outcome,
    SerializerSnapshot,
    TypeSerializer,
    after_migration,
    decode_snapshot,
    encode_snapshot,
    incompatible,
    migrated,
    reconfigured,
    require_known_version,
)

CLASS_ID = "optional"
_VERSION = 1


class OptionalSerializer:
    """
    Says of a part that it may be ``None``; the column is the same, as every column can hold nulls.

    :param value: The serializer of what is not ``None``.
    """

    def __init__(self, value: TypeSerializer[Any]) -> None:
        self.value = value

    @property
    def arrow_type(self) -> Any:
        """Return the Arrow type of the column."""
        return self.value.arrow_type

    @property
    def is_immutable(self) -> bool:
        """Return whether values are immutable and can be shared."""
        return is_immutable(self.value)

    def to_arrow(self, values: Sequence[Any]) -> Any:
        """Return an Arrow array of values, with null for ``None``."""
        return self.value.to_arrow(values)

    def from_arrow(self, array: Any) -> list[Any]:
        """Return the values of an array as new objects."""
        return self.value.from_arrow(array)

    def own(self, value: Any) -> Any:
        """
        Return a value as it comes back from a checkpoint; ``None`` is one too.

        :raises UnsupportedStateError: if a value has another type.
        """
        return None if value is None else own_of(self.value)(value)

    def copy(self, value: Any) -> Any:
        """Return a copy of a value that shares no mutable object with it."""
        return None if value is None else self.value.copy(value)

    def snapshot(self) -> SerializerSnapshot:
        """Return the snapshot that later versions are compared with."""
        config = {"value": encode_snapshot(self.value.snapshot())}
        return SerializerSnapshot(class_id=CLASS_ID, version=_VERSION, config=config)

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        """Say whether state can go on; that it may now be ``None`` changes nothing in what is written."""
        verdict = self.value.resolve_compatibility(value_of(old))
        if verdict.serializer is None:
            return verdict
        assert verdict.migrate is not None  # noqa: S101 - reconfigured verdicts have one
        return reconfigured(verdict.reason, OptionalSerializer(verdict.serializer), verdict.migrate)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OptionalSerializer) and self.value == other.value

    def __hash__(self) -> int:
        return hash((CLASS_ID, self.value))


def is_optional(snapshot: SerializerSnapshot) -> bool:
    """Tell whether values may be ``None``."""
    return snapshot.class_id == CLASS_ID


def value_of(snapshot: SerializerSnapshot) -> SerializerSnapshot:
    """
    Return the snapshot of what is not ``None``.

    :raises IncompatibleCheckpointError: if a newer version wrote the snapshot.
    """
    if not is_optional(snapshot):
        return snapshot
    require_known_version(snapshot, _VERSION)
    return decode_snapshot(snapshot.config["value"])


def without_optional(serializer: TypeSerializer[Any]) -> TypeSerializer[Any]:
    """Return the serializer of what is not ``None``; whether a whole cell may be ``None`` is for its kind of state to say."""
    return serializer.value if isinstance(serializer, OptionalSerializer) else serializer


def is_immutable(serializer: TypeSerializer[Any]) -> bool:
    """Tell whether values can be shared; of a serializer that does not say, they cannot."""
    return bool(getattr(serializer, "is_immutable", False))


def resolve_part(new: TypeSerializer[Any], old: SerializerSnapshot, default: Any = None) -> Compatibility:
    """
    Compare a part of a value, such as the field of a record.

    :param default: Gives an array of one value to put where there was ``None``, if that is no longer allowed.
    """
    if not is_optional(old) or isinstance(new, OptionalSerializer):
        return new.resolve_compatibility(old)
    verdict = new.resolve_compatibility(value_of(old))
    if default is None and verdict.outcome is not Outcome.INCOMPATIBLE:
        return incompatible("could be None, now it cannot")
    if verdict.outcome is Outcome.INCOMPATIBLE:
        return verdict
    reason = "; ".join(filter(None, (verdict.reason, "the default takes the place of None")))
    return after_migration(reason, lambda array: _filled(migrated(verdict, array), default()), merges=True)


def require_no_none(part: TypeSerializer[Any], array: Any, allowed: int, place: str) -> None:
    """
    Refuse ``None`` in a part that is not optional.

    :param allowed: How many nulls there are because the whole is ``None``.
    :raises UnsupportedStateError: naming the place.
    """
    if array.null_count > allowed and not isinstance(part, OptionalSerializer):
        raise UnsupportedStateError(f"Expected {place} to have a value, found None; declare its type as optional.")


def _filled(array: Any, default: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not array.null_count:
        return array
    both = pa.concat_arrays([array, default])
    places = pa.array(range(len(array)), pa.int64())
    return both.take(pc.if_else(array.is_valid(), places, pa.scalar(len(array), pa.int64())))


def offsets_of(values: Sequence[Any]) -> Any:
    """Return where each of many collections begins if they stand one after the other, and where the last ends."""
    import pyarrow as pa

    return pa.array(
        list(accumulate((len(value) if value is not None else 0 for value in values), initial=0)), pa.int32()
    )


def nulls_of(values: Sequence[Any]) -> Any:
    """Return which values are ``None`` as an Arrow array; ``None`` if there are none."""
    import pyarrow as pa

    return pa.array([value is None for value in values], pa.bool_()) if any(value is None for value in values) else None


def offsets_of_array(array: Any) -> Any:
    """Return what :func:`offsets_of` gives for the lists of an Arrow array, which may be a slice."""
    import pyarrow as pa
    import pyarrow.compute as pc

    bounds = array.offsets
    lengths = pc.subtract(bounds.slice(1), bounds.slice(0, len(array)))
    if array.null_count:
        # What lies behind a null counts for nothing.
        lengths = pc.if_else(array.is_valid(), lengths, pa.scalar(0, pa.int32()))
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])


def nulls_of_array(array: Any) -> Any:
    """Return which values of an Arrow array are null; ``None`` if there are none."""
    return array.is_null() if array.null_count else None


def list_array(offsets: Any, elements: Any, nulls: Any) -> Any:
    """Return an array of lists."""
    import pyarrow as pa

    return pa.ListArray.from_arrays(offsets, elements, type=pa.list_(elements.type), mask=nulls)


def map_array(offsets: Any, keys: Any, values: Any, nulls: Any) -> Any:
    """Return an array of maps."""
    import pyarrow as pa

    return pa.MapArray.from_arrays(offsets, keys, values, type=pa.map_(keys.type, values.type), mask=nulls)


def entries_of_array(array: Any) -> tuple[Any, Any]:
    """Return the keys and the values of the maps of an Arrow array, one after the other."""
    present = array.drop_null() if array.null_count else array
    offsets = present.offsets
    start = offsets[0].as_py()
    length = offsets[len(offsets) - 1].as_py() - start
    return present.keys.slice(start, length), present.items.slice(start, length)


def with_elements(array: Any, elements: Any) -> Any:
    """Return the lists of an array with other elements, of which there are as many."""
    return list_array(offsets_of_array(array), elements, nulls_of_array(array))


class Freezing(NamedTuple):
    """How values of one type are kept."""

    freeze: Callable[[Any], Any]
    """Returns what is kept of a value; raises ``UnsupportedStateError`` for a value of another type."""
    thaw: Callable[[Any], Any] | None
    """Returns a value from what was kept of it; ``None`` if that is the value itself."""
    read: Callable[[Any], list[Any]]
    """Returns what is kept of the values of an Arrow array, ``None`` where it is null."""
    write: Callable[[Sequence[Any]], Any]
    """Returns an Arrow array of values from what was kept of them, null where that is ``None``."""

    def thawed(self, kept: Any) -> Any:
        """Return a value from what was kept of it, ``None`` from ``None``."""
        return kept if self.thaw is None or kept is None else self.thaw(kept)


def freezing_of(serializer: TypeSerializer[Any]) -> Freezing:
    """Return how the values of a serializer are kept: as its ``freezing`` says, else as they are or as copies."""
    special = getattr(serializer, "freezing", None)
    if special is not None:
        found: Freezing = special()
        return found
    thaw = None if is_immutable(serializer) else serializer.copy
    return Freezing(own_of(serializer), thaw, serializer.from_arrow, serializer.to_arrow)
