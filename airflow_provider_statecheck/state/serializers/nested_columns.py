"""
Nested values as Arrow columns, and Arrow types that Spark, DuckDB and Polars read.

Several types of state have no equivalent in Spark. Their columns are stored in a type that represents every value.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from datetime import time
from functools import reduce
from itertools import accumulate
from typing import Any

from airflow_provider_statecheck.checkpoint.codec import encode
from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.lazy import np, pa, pc
from airflow_provider_statecheck.state.serializers.serializer import (
    Compatibility,
    Outcome,
    SerializerSnapshot,
    TypeSerializer,
    after_migration,
    decode_snapshot,
    incompatible,
    migrated,
    require_known_version,
    serializer_from_now_on,
    whole,
)
from airflow_provider_statecheck.storage.stored_json import decoding


class OptionalSerializer(TypeSerializer[Any]):
    """
    Serializer that permits ``None``; the Arrow column is the same, since every column is nullable.

    A type that becomes optional is compatible as is.

    :param value: The serializer of the values other than ``None``.
    """

    class_id = "optional"

    def __init__(self, value: TypeSerializer[Any]) -> None:
        self.value = value

    @property
    def arrow_type(self) -> Any:
        return self.value.arrow_type

    @property
    def is_immutable(self) -> bool:
        return self.value.is_immutable

    def to_arrow(self, values: Sequence[Any]) -> Any:
        return self.value.to_arrow(values)

    def from_arrow(self, array: Any) -> list[Any]:
        return self.value.from_arrow(array)

    def own(self, value: Any) -> Any:
        return None if value is None else self.value.own(value)

    def copy(self, value: Any) -> Any:
        return None if value is None else self.value.copy(value)

    def require_valid(self, array: Any, place: str) -> None:
        self.value.require_valid_or_null(array, place)

    require_valid_or_null = require_valid

    def config(self) -> dict[str, Any]:
        return {"value": encode(self.value.snapshot())}

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        verdict = self.value.resolve_compatibility(value_of(old))
        return whole(
            [("", verdict)],
            lambda: OptionalSerializer(serializer_from_now_on(verdict, self.value)),
            lambda array: migrated(verdict, array),
        )


def is_optional(snapshot: SerializerSnapshot) -> bool:
    """Return whether a snapshot belongs to an optional type."""
    return snapshot.class_id == OptionalSerializer.class_id


def value_of(snapshot: SerializerSnapshot) -> SerializerSnapshot:
    """
    Return the snapshot of the inner type of an optional one; other snapshots are returned unchanged.

    :raises IncompatibleCheckpointError: if a newer version wrote the snapshot.
    """
    if not is_optional(snapshot):
        return snapshot
    require_known_version(snapshot, OptionalSerializer.version)
    with decoding("the config of an optional type"):
        return decode_snapshot(snapshot.config["value"])


def without_optional(serializer: TypeSerializer[Any]) -> TypeSerializer[Any]:
    """Return the inner serializer of an optional one; each kind of state defines how it treats ``None``."""
    return serializer.value if isinstance(serializer, OptionalSerializer) else serializer


def resolve_part(new: TypeSerializer[Any], old: SerializerSnapshot, default: Any = None) -> Compatibility:
    """
    Compare a part of a value, such as a field of a record, with its snapshot.

    :param default: A function that returns an Arrow array with one value, the replacement for ``None`` in state that
        was optional. Default ``None``: no longer permitting ``None`` is incompatible.
    """
    if not is_optional(old) or isinstance(new, OptionalSerializer):
        return new.resolve_compatibility(old)
    verdict = new.resolve_compatibility(value_of(old))
    if default is None and verdict.outcome is not Outcome.INCOMPATIBLE:
        return incompatible("could be None, now it cannot")
    if verdict.outcome is Outcome.INCOMPATIBLE:
        return verdict
    reason = "; ".join(filter(None, (verdict.reason, "the default replaces None")))
    return after_migration(reason, lambda array: filled(migrated(verdict, array), default()), merges=True)


def require_no_none(part: TypeSerializer[Any], array: Any, place: str) -> None:
    """
    Reject ``None`` in a part that is not optional.

    :param place: The description of the part for the error message.
    :raises UnsupportedStateError: if the array has a null.
    """
    if array.null_count and not isinstance(part, OptionalSerializer):
        raise UnsupportedStateError(f"Expected {place} to have a value, found None; declare its type as optional.")


def filled(array: Any, default: Any) -> Any:
    """
    Return an array with a default in place of nulls.

    :param default: Arrow array of one value of the same type.
    """
    if not array.null_count:
        return array
    both = pa.concat_arrays([array, default])
    places = pa.array(range(len(array)), pa.int64())
    return both.take(pc.if_else(array.is_valid(), places, pa.scalar(len(array), pa.int64())))


def offsets_of(values: Sequence[Any]) -> Any:
    """Return the Arrow list offsets of a sequence of collections."""
    return pa.array(
        list(accumulate((len(value) if value is not None else 0 for value in values), initial=0)), pa.int32()
    )


def nulls_of(values: Sequence[Any]) -> Any:
    """Return the null mask of a sequence of values, or ``None`` without nulls."""
    return pa.array([value is None for value in values], pa.bool_()) if any(value is None for value in values) else None


def offsets_of_array(array: Any) -> Any:
    """Return the list offsets of an Arrow array from 0, also for a slice."""
    bounds = array.offsets
    lengths = pc.subtract(bounds.slice(1), bounds.slice(0, len(array)))
    if array.null_count:
        # Arrow permits a nonzero length in a null slot.
        lengths = pc.if_else(array.is_valid(), lengths, pa.scalar(0, pa.int32()))
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])


def nulls_of_array(array: Any) -> Any:
    """Return the null mask of an Arrow array, or ``None`` without nulls."""
    return array.is_null() if array.null_count else None


def with_nulls(array: Any, values: list[Any]) -> list[Any]:
    """Return the values of an Arrow array with ``None`` for those that are null in the array."""
    if not array.null_count:
        return values
    return [value if valid else None for value, valid in zip(values, array.is_valid().to_pylist(), strict=True)]


def list_array(offsets: Any, elements: Any, nulls: Any) -> Any:
    """Return an Arrow array of lists."""
    return pa.ListArray.from_arrays(offsets, elements, mask=nulls)


def entries_of_array(array: Any) -> tuple[Any, Any]:
    """Return the flattened keys and values of an Arrow array of maps."""
    present = array.drop_null() if array.null_count else array
    offsets = present.offsets
    start = offsets[0].as_py()
    length = offsets[len(offsets) - 1].as_py() - start
    return present.keys.slice(start, length), present.items.slice(start, length)


def with_elements(array: Any, elements: Any) -> Any:
    """Return the lists of an array with their elements replaced by as many others."""
    return list_array(offsets_of_array(array), elements, nulls_of_array(array))


def with_entries(array: Any, keys: Any, values: Any) -> Any:
    """Return the maps of an array with their entries replaced by as many others."""
    return pa.MapArray.from_arrays(offsets_of_array(array), keys, values, mask=nulls_of_array(array))


def differing(a: Any, b: Any) -> Any:
    """
    Return a boolean Arrow array without nulls that is true where two arrays of equal type and length differ.

    Null equals null, and NaN equals NaN.
    """
    nulls_differ = pc.not_equal(a.is_null(), b.is_null())
    both = pc.and_(a.is_valid(), b.is_valid())
    return pc.or_(nulls_differ, pc.and_(both, _values_differ(a, b)))


def _values_differ(a: Any, b: Any) -> Any:
    kind = a.type
    if pa.types.is_struct(kind):
        fields = map(differing, a.flatten(), b.flatten())
        return reduce(pc.or_, fields, pa.repeat(pa.scalar(False), len(a)))
    if pa.types.is_map(kind) or pa.types.is_list(kind):
        return _lists_differ(a, b)
    if pa.types.is_null(kind):
        return pa.repeat(pa.scalar(False), len(a))
    if pa.types.is_floating(kind):
        a, b = a.cast(pa.float64()), b.cast(pa.float64())
        are_nan = pc.and_(pc.is_nan(a), pc.is_nan(b))
        return pc.fill_null(pc.and_(pc.not_equal(a, b), pc.invert(are_nan)), True)
    if pa.types.is_decimal(kind) and kind.scale < 0:
        # Arrow does not compare these; equal ones have equal bytes.
        a, b = (each.view(pa.binary(kind.bit_width // 8)) for each in (a, b))
    return pc.fill_null(pc.not_equal(a, b), True)


def _lists_differ(a: Any, b: Any) -> Any:
    lengths_of_a, lengths_of_b = (np.diff(offsets_of_array(each).to_numpy()) for each in (a, b))
    differ = lengths_of_a != lengths_of_b
    same = np.flatnonzero(~differ)
    of_a, of_b = (_elements(each.take(pa.array(same))) for each in (a, b))
    unequal = differing(of_a, of_b).to_numpy(zero_copy_only=False)
    owners = np.repeat(same, lengths_of_a[same])
    differ[owners[unequal]] = True
    return pa.array(differ)


def _elements(lists: Any) -> Any:
    """Return the elements of lists as one array, the entries of maps as structs."""
    if not pa.types.is_map(lists.type):
        return lists.flatten()
    keys, values = entries_of_array(lists)
    return pa.StructArray.from_arrays([keys, values], names=["key", "value"])


DESCRIPTION = b"statecheck"
"""Key of the description of a state in the metadata of a Parquet schema."""
OfUnknown = Callable[[Any], Any]
"""Returns the type to use for a type without a portable equivalent."""


def portable_type(kind: Any, of_unknown: OfUnknown = lambda kind: kind) -> Any:
    """
    Return a type that Spark supports and that represents all values of an Arrow type.

    :param of_unknown: Returns the result for a type without such an equivalent; by default the type itself.
    """
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, portable_type(field.type, of_unknown)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(portable_type(kind.key_type, of_unknown), portable_type(kind.item_type, of_unknown))
    if pa.types.is_list(kind):
        return pa.list_(portable_type(kind.value_type, of_unknown))
    if pa.types.is_timestamp(kind):
        # Timestamps with a time zone are in UTC in Spark.
        return pa.timestamp("us", "UTC" if kind.tz else None)
    return _wider_types().get(kind) or _plain_type(kind) or of_unknown(kind)


def portable_schema(schema: Any) -> Any:
    """Return a schema with portable types, where a type has an equivalent."""
    return pa.schema([(field.name, portable_type(field.type)) for field in schema])


def to_portable(table: Any, schema: Any) -> Any:
    """
    Return a table with the types of a portable schema.

    :raises UnsupportedStateError: if a value is out of the range of its portable type.
    """
    with storing():
        # Arrow fails to cast a list of nulls, even to its own type.
        columns = [c if c.type == f.type else c.cast(f.type) for c, f in zip(table.columns, schema, strict=True)]
    return pa.table(columns, schema=schema)


@contextlib.contextmanager
def storing() -> Iterator[None]:
    """
    Report what Parquet cannot hold.

    :raises UnsupportedStateError: if the block fails because of a type or a value.
    """
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise UnsupportedStateError(
            f"Expected types and values that the columns of Parquet files can hold, found others: {error}; take a "
            "native savepoint."
        ) from error


def _wider_types() -> dict[Any, Any]:
    return {
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0),
        pa.float16(): pa.float32(),
        pa.large_string(): pa.string(),
        pa.large_binary(): pa.binary(),
    }


def _plain_type(kind: Any) -> Any:
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_duration(kind):
        return pa.duration("us")
    if pa.types.is_time(kind):
        # Spark's type for times of day is disabled in most sessions.
        return pa.string()
    if pa.types.is_decimal(kind):
        return _decimal(kind)
    is_number = pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return (
        kind if is_number or pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_date32(kind) else None
    )


def _decimal(kind: Any) -> Any:
    # A negative scale is valid in Arrow only.
    precision, scale = kind.precision - min(kind.scale, 0), max(kind.scale, 0)
    return pa.decimal128(precision, scale) if precision <= 38 else None


def conformed(array: Any, wanted: Any, place: str) -> Any:
    """
    Convert an array to another Arrow type without a change of values; fields of structs are matched by name.

    :param place: Name of the column or field, for error messages.
    :raises UnsupportedStateError: if fields are missing or unexpected, or if a value does not fit the type.
    """
    if array.type == wanted:
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), wanted)
    if pa.types.is_dictionary(array.type):
        return conformed(array.dictionary_decode(), wanted, place)
    if pa.types.is_struct(array.type) and pa.types.is_struct(wanted):
        return _struct(array, wanted, place)
    if pa.types.is_map(array.type) and pa.types.is_map(wanted):
        keys, values = entries_of_array(array)
        keys, values = conformed(keys, wanted.key_type, place), conformed(values, wanted.item_type, place)
        return with_entries(array, keys, values)
    if pa.types.is_list(array.type) and pa.types.is_list(wanted):
        return with_elements(array, conformed(array.flatten(), wanted.value_type, place))
    if _family(array.type) != _family(wanted) and not (pa.types.is_string(array.type) and pa.types.is_time(wanted)):
        raise UnsupportedStateError(f"Expected {place} to be of type {wanted}, found {array.type}; convert it first.")
    try:
        converted = _times_of_day(array, wanted) if pa.types.is_time(wanted) else array.cast(wanted)
    except (pa.ArrowException, ValueError) as error:
        raise UnsupportedStateError(
            f"Expected {place} to be of type {wanted}, found {array.type}; convert it first: {error}"
        ) from error
    if pa.types.is_floating(array.type) or pa.types.is_floating(wanted):
        _require_exact(array, converted, place)
    return converted


def _require_exact(array: Any, converted: Any, place: str) -> None:
    # A cast to or from a floating-point type rounds without an error.
    changed = array.filter(differing(array, converted.cast(array.type, safe=False)))
    if len(changed):
        raise UnsupportedStateError(
            f"Expected {place} to be of type {converted.type}, found {counted(len(changed), 'value')} of type "
            f"{array.type} that it cannot hold exactly; round or convert them first."
        )


def _family(kind: Any) -> Any:
    """Return the family of a type; a cast within a family retains the meaning of the value."""
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "text"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return "bytes"
    if pa.types.is_timestamp(kind):
        return "moment" if kind.tz else "time on the clock"
    if pa.types.is_time(kind):
        return "time of day"
    return "duration" if pa.types.is_duration(kind) else kind


def _times_of_day(array: Any, wanted: Any) -> Any:
    if not pa.types.is_string(array.type):
        return array.cast(wanted)
    return pa.array([None if text is None else time.fromisoformat(text) for text in array.to_pylist()], wanted)


def _struct(array: Any, wanted: Any, place: str) -> Any:
    fields = dict(zip([field.name for field in array.type], array.flatten(), strict=True))
    names = [field.name for field in wanted]
    if sorted(fields) != sorted(names):
        raise UnsupportedStateError(
            f"Expected {place} to have the fields {', '.join(names)}, found {', '.join(fields)}; use exactly these."
        )
    columns = [conformed(fields[field.name], field.type, f"{place}.{field.name}") for field in wanted]
    return pa.StructArray.from_arrays(columns, fields=list(wanted), mask=nulls_of_array(array))
