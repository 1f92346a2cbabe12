"""Columns of state in the types in which Spark takes rows from Python."""

from __future__ import annotations

from typing import Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError


def spark_schema_of(schema: Any) -> Any:
    """
    Return the schema of Spark for rows of an Arrow schema.

    :raises UnsupportedStateError: for a type that Spark does not have.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(taken_schema(schema))


def taken_schema(schema: Any) -> Any:
    """
    Return the Arrow schema in which Spark takes the rows of another one; each of their values has a place in it.

    :raises UnsupportedStateError: for a type that Spark does not have.
    """
    import pyarrow as pa

    return pa.schema([(field.name, _taken(field.type, field.name)) for field in schema])


def as_spark_takes_it(table: Any) -> Any:
    """
    Return rows in types that Spark takes.

    :raises UnsupportedStateError: for a type that Spark does not have.
    """
    wanted = taken_schema(table.schema)
    return table if wanted == table.schema else table.cast(wanted)


def _taken(kind: Any, column: str) -> Any:
    import pyarrow as pa
    from pyarrow import types

    if types.is_struct(kind):
        return pa.struct([(field.name, _taken(field.type, column)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_taken(kind.key_type, column), _taken(kind.item_type, column))
    if types.is_list(kind):
        return pa.list_(_taken(kind.value_type, column))
    if types.is_timestamp(kind):
        # Spark knows moments as those of UTC.
        return pa.timestamp("us", "UTC" if kind.tz else None)
    found = _widened().get(kind) or _of_its_kind(kind)
    if found is None:
        raise UnsupportedStateError(
            f"Expected types of state that Spark has, found {kind} in the column {column!r}; read it with "
            f"airflow_provider_statecheck.state.reading.read_state, which gives Arrow."
        )
    return found


def _widened() -> dict[Any, Any]:
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


def _of_its_kind(kind: Any) -> Any:
    import pyarrow as pa
    from pyarrow import types

    if types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_duration(kind):
        return pa.duration("us")
    if types.is_time(kind):
        # Most sessions refuse Spark's own type of times of day.
        return pa.string()
    if types.is_decimal(kind) and kind.precision <= 38:
        return pa.decimal128(kind.precision, kind.scale)
    plain = types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)
    return kind if plain or types.is_string(kind) or types.is_binary(kind) or types.is_date32(kind) else None
