"""
Conversion between the types of state and Arrow types that Spark, DuckDB and Polars read.

Several types of state have no equivalent in Spark. Their columns are stored in a type that represents every value.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import time
from typing import Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.state.serializers.nested_columns import (
    differing,
    entries_of_array,
    list_array,
    map_array,
    nulls_of_array,
    offsets_of_array,
)

DESCRIPTION = b"statecheck"
"""Key of the description of a state in the metadata of a Parquet schema."""
OfUnknown = Callable[[Any], Any]
"""Returns the type to use for a type without a portable equivalent."""


def portable_type(kind: Any, of_unknown: OfUnknown = lambda kind: kind) -> Any:
    """
    Return a type that Spark supports and that represents all values of an Arrow type.

    :param of_unknown: Returns the result for a type without such an equivalent; by default the type itself.
    """
    import pyarrow as pa
    from pyarrow import types

    if types.is_struct(kind):
        return pa.struct([(field.name, portable_type(field.type, of_unknown)) for field in kind])
    if types.is_map(kind):
        return pa.map_(portable_type(kind.key_type, of_unknown), portable_type(kind.item_type, of_unknown))
    if types.is_list(kind):
        return pa.list_(portable_type(kind.value_type, of_unknown))
    if types.is_timestamp(kind):
        # Timestamps with a time zone are in UTC in Spark.
        return pa.timestamp("us", "UTC" if kind.tz else None)
    return _wider_types().get(kind) or _plain_type(kind) or of_unknown(kind)


def portable_schema(schema: Any) -> Any:
    """Return a schema with portable types, where a type has an equivalent."""
    import pyarrow as pa

    return pa.schema([(field.name, portable_type(field.type)) for field in schema])


def to_portable(table: Any, schema: Any) -> Any:
    """
    Return a table with the types of a portable schema.

    :raises UnsupportedStateError: if a value is out of the range of its portable type.
    """
    import pyarrow as pa

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
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise UnsupportedStateError(
            f"Expected types and values that the columns of Parquet files can hold, found others: {error}; take a native "
            f"savepoint."
        ) from error


def _wider_types() -> dict[Any, Any]:
    import pyarrow as pa

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
    import pyarrow as pa
    from pyarrow import types

    if types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_duration(kind):
        return pa.duration("us")
    if types.is_time(kind):
        # Spark's type for times of day is disabled in most sessions.
        return pa.string()
    if types.is_decimal(kind):
        return _decimal(kind)
    is_number = types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)
    return kind if is_number or types.is_string(kind) or types.is_binary(kind) or types.is_date32(kind) else None


def _decimal(kind: Any) -> Any:
    import pyarrow as pa

    # A negative scale is valid in Arrow only.
    precision, scale = kind.precision - min(kind.scale, 0), max(kind.scale, 0)
    return pa.decimal128(precision, scale) if precision <= 38 else None


def conformed(array: Any, wanted: Any, place: str) -> Any:
    """
    Convert an array to another Arrow type without a change of values; fields of structs are matched by name.

    :param array: Array to convert.
    :param wanted: Arrow type of the result.
    :param place: Name of the column or field, for error messages.
    :raises UnsupportedStateError: if fields are missing or unexpected, or if a value does not fit the type.
    """
    import pyarrow as pa
    from pyarrow import types

    if array.type == wanted:
        return array
    if types.is_null(array.type):
        return pa.nulls(len(array), wanted)
    if types.is_dictionary(array.type):
        return conformed(array.dictionary_decode(), wanted, place)
    if types.is_struct(array.type) and types.is_struct(wanted):
        return _struct(array, wanted, place)
    if types.is_map(array.type) and types.is_map(wanted):
        keys, values = entries_of_array(array)
        keys, values = conformed(keys, wanted.key_type, place), conformed(values, wanted.item_type, place)
        return map_array(offsets_of_array(array), keys, values, nulls_of_array(array))
    if types.is_list(array.type) and types.is_list(wanted):
        elements = conformed(array.flatten(), wanted.value_type, place)
        return list_array(offsets_of_array(array), elements, nulls_of_array(array))
    if _family(array.type) != _family(wanted) and not (types.is_string(array.type) and types.is_time(wanted)):
        raise UnsupportedStateError(f"Expected {place} to be of type {wanted}, found {array.type}; convert it first.")
    try:
        converted = _times_of_day(array, wanted) if types.is_time(wanted) else array.cast(wanted)
    except (pa.ArrowException, ValueError) as error:
        raise UnsupportedStateError(
            f"Expected {place} to be of type {wanted}, found {array.type}; convert it first: {error}"
        ) from error
    if types.is_floating(array.type) or types.is_floating(wanted):
        _require_exact(array, converted, place)
    return converted


def _require_exact(array: Any, converted: Any, place: str) -> None:
    # A cast to or from a floating-point type rounds without an error.
    import pyarrow.compute as pc

    changed = array.filter(differing(array, converted.cast(array.type, safe=False)))
    if len(changed):
        raise UnsupportedStateError(
            f"Expected {place} to be of type {converted.type}, found {pc.count(changed)} values of type {array.type} that it "
            "cannot hold exactly; round or convert them first."
        )


def _family(kind: Any) -> Any:
    """Return the family of a type; a cast within a family retains the meaning of the value."""
    from pyarrow import types

    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "text"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return "bytes"
    if types.is_timestamp(kind):
        return "moment" if kind.tz else "time on the clock"
    if types.is_time(kind):
        return "time of day"
    return "duration" if types.is_duration(kind) else kind


def _times_of_day(array: Any, wanted: Any) -> Any:
    import pyarrow as pa

    if not pa.types.is_string(array.type):
        return array.cast(wanted)
    return pa.array([None if text is None else time.fromisoformat(text) for text in array.to_pylist()], wanted)


def _struct(array: Any, wanted: Any, place: str) -> Any:
    import pyarrow as pa

    fields = dict(zip([field.name for field in array.type], array.flatten(), strict=True))
    names = [field.name for field in wanted]
    if sorted(fields) != sorted(names):
        raise UnsupportedStateError(
            f"Expected {place} to have the fields {', '.join(names)}, found {', '.join(fields)}; use exactly these."
        )
    columns = [conformed(fields[field.name], field.type, f"{place}.{field.name}") for field in wanted]
    return pa.StructArray.from_arrays(columns, fields=list(wanted), mask=nulls_of_array(array))
