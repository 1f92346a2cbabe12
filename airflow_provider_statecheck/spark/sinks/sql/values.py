"""Arrow tables in the forms in which databases take them."""

from __future__ import annotations

import io
from typing import Any


def as_csv(table: Any) -> io.BytesIO:
    """Return the rows as CSV for PostgreSQL's COPY: nothing for null, quotes around every text."""
    import pyarrow.csv as csv

    target = io.BytesIO()
    csv.write_csv(_without_binary(table), target, csv.WriteOptions(include_header=False, quoting_style="needed"))
    target.seek(0)
    return target


def as_rows(table: Any) -> list[dict[str, Any]]:
    """Return the rows as Python values for SQLite: exact numbers as text, moments in UTC."""
    import pyarrow as pa

    columns = {}
    for field, column in zip(table.schema, table.columns, strict=True):
        if pa.types.is_decimal(field.type) or pa.types.is_uint64(field.type):
            columns[field.name] = column.cast(pa.string())
        elif pa.types.is_timestamp(field.type):
            columns[field.name] = column.cast(pa.timestamp("us", "UTC" if field.type.tz else None))
        else:
            columns[field.name] = column
    rows: list[dict[str, Any]] = pa.table(columns).to_pylist()
    return rows


def with_constants(table: Any, **values: Any) -> Any:
    """Return the table with more columns, each with one value in all rows."""
    import pyarrow as pa

    for name, value in values.items():
        table = table.append_column(name, pa.repeat(value, table.num_rows))
    return table


def numbered(table: Any, name: str, first: int) -> Any:
    """Return the table with a column that counts its rows."""
    import pyarrow as pa

    numbers = pa.array(range(first, first + table.num_rows), pa.int64())
    return table.append_column(name, numbers)


def _without_binary(table: Any) -> Any:
    import pyarrow as pa

    for number, field in enumerate(table.schema):
        if pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
            found = table.column(number).to_pylist()
            text = pa.array([None if value is None else f"\\x{value.hex()}" for value in found], pa.string())
            table = table.set_column(number, field.name, text)
    return table
