"""Columns of Delta tables: types, and statistics of their values."""

from __future__ import annotations

import datetime
import json
from typing import Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.spark.tables.delta import deltalake

_UTC = frozenset({"UTC", "Etc/UTC", "+00:00", "Z"})
# The length of string statistics that other Delta writers use.
_MAX_STRING_LENGTH = 32


def file_schema(schema: Any) -> Any:
    """
    Return the Arrow schema of data files for an output schema, with types that Delta supports.

    :raises UnsupportedStateError: if a column has an unsupported type, or names are duplicate.
    """
    import pyarrow as pa

    lower = [name.lower() for name in schema.names]
    repeated = sorted({name for name in schema.names if lower.count(name.lower()) > 1})
    if repeated or not lower:
        raise UnsupportedStateError(
            f"Expected columns with different names for a Delta table, regardless of case, found {repeated or 'none'}; "
            "rename them."
        )
    return pa.schema([pa.field(field.name, _delta_type(field.name, field.type), field.nullable) for field in schema])


def stored_schema(schema: Any) -> Any:
    """Return an Arrow schema as a Delta table returns it after storing it."""
    import pyarrow as pa

    return pa.schema(deltalake().Schema.from_arrow(file_schema(schema)).to_arrow())


def incompatibilities(table: Any, ours: Any, *, merges: bool) -> list[str]:
    """
    Return the reasons why files with one schema cannot be added to a table with another.

    :param table: Arrow schema of the table.
    :param ours: Arrow schema of the files, as a Delta table returns it.
    :param merges: Whether columns may be added to the table.
    """
    found = [
        f"column {field.name!r} of the table is not nullable and is not written"
        for field in table
        if ours.get_field_index(field.name) < 0 and not field.nullable
    ]
    for field in ours:
        if table.get_field_index(field.name) >= 0:
            found += _column_differences(table.field(field.name), field)
        elif not merges:
            found.append(f"the table has no column {field.name!r} (merge_schema=True adds it)")
        elif not field.nullable:
            found.append(f"column {field.name!r} is new and not nullable")
    return found


def new_columns(table: Any, ours: Any) -> list[str]:
    """Return the columns that the table lacks."""
    return [name for name in ours.names if table.get_field_index(name) < 0]


def statistics_of(metadata: Any) -> str:
    """
    Return the statistics of a Parquet file in the format of the transaction log.

    Only integers, strings and dates have bounds; readers differ in the order of other types.

    :param metadata: Result of ``pyarrow.parquet.read_metadata``.
    """
    columns = [_column_statistics(metadata, index) for index in range(metadata.num_columns)]
    plain = [column for column in columns if column is not None]
    return json.dumps(
        {
            "numRecords": metadata.num_rows,
            "minValues": {name: low for name, low, _, _ in plain if low is not None},
            "maxValues": {name: high for name, _, high, _ in plain if high is not None},
            "nullCount": {name: nulls for name, _, _, nulls in plain},
        },
        ensure_ascii=False,
    )


def _column_statistics(metadata: Any, index: int) -> tuple[str, Any, Any, int] | None:
    column = metadata.schema.column(index)
    groups = [metadata.row_group(number).column(index).statistics for number in range(metadata.num_row_groups)]
    # Writers count the values of nested columns differently.
    if (
        column.path != column.name
        or column.max_repetition_level
        or any(s is None or not s.has_null_count for s in groups)
    ):
        return None
    nulls = sum(statistics.null_count for statistics in groups)
    filled = [statistics for statistics in groups if statistics.num_values]
    if any(not statistics.has_min_max for statistics in filled):
        return column.name, None, None, nulls
    lowest = min((s.min for s in filled), default=None)
    highest = max((s.max for s in filled), default=None)
    return column.name, _lower_bound(lowest), _upper_bound(highest), nulls


def _lower_bound(value: Any) -> Any:
    return value[:_MAX_STRING_LENGTH] if isinstance(value, str) else _plain_bound(value)


def _upper_bound(value: Any) -> Any:
    if isinstance(value, str):
        # A truncated string would be less than the maximum.
        return value if len(value) <= _MAX_STRING_LENGTH else None
    return _plain_bound(value)


def _plain_bound(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    is_date = isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)
    return value.isoformat() if is_date else None


def _column_differences(theirs: Any, ours: Any) -> list[str]:
    if theirs.type != ours.type:
        return [f"column {ours.name!r} is {theirs.type} in the table and {ours.type} here"]
    if ours.nullable and not theirs.nullable:
        return [f"column {ours.name!r} is not nullable in the table and is nullable here"]
    return []


def _delta_type(name: str, kind: Any) -> Any:
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(kind):
        return _delta_type(name, kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind) or types.is_string(kind):
        return pa.string()
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_timestamp(kind):
        return _timestamp_type(name, kind)
    if types.is_nested(kind):
        return _nested_type(name, kind)
    plain = (types.is_signed_integer, types.is_float32, types.is_float64, types.is_boolean, types.is_date32)
    if any(test(kind) for test in plain) or types.is_decimal128(kind):
        return kind
    raise _unsupported_error(name, kind)


def _timestamp_type(name: str, kind: Any) -> Any:
    import pyarrow as pa

    if kind.unit == "ns" or kind.tz not in (None, *_UTC):
        raise _unsupported_error(name, kind)
    return pa.timestamp("us", "UTC" if kind.tz else None)


def _nested_type(name: str, kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _delta_type(f"{name}.{f.name}", f.type), f.nullable) for f in kind])
    if pa.types.is_map(kind):
        item = pa.field("value", _delta_type(f"{name}.value", kind.item_type), kind.item_field.nullable)
        return pa.map_(pa.field("key", _delta_type(f"{name}.key", kind.key_type), nullable=False), item)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = kind.value_field
        return pa.list_(pa.field("element", _delta_type(f"{name}.element", element.type), element.nullable))
    raise _unsupported_error(name, kind)


def _unsupported_error(name: str, kind: Any) -> UnsupportedStateError:
    return UnsupportedStateError(
        f"Expected a type of Delta tables for the column {name!r}, found {kind}; convert it in the stage to an integer, a "
        "float, a decimal, a string, binary, a boolean, a date, a timestamp in microseconds, or a list, a map or a struct of "
        "these."
    )
