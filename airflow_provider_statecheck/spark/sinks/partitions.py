"""Directories by the values of columns, as Hive and Spark name them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError

_NULL = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = frozenset("\"#%'*/:=?\\{}[]^<>| \x7f") | {chr(code) for code in range(32)}


def require_partitionable(schema: Any, columns: Sequence[str]) -> None:
    """
    Refuse columns whose values cannot be told from a directory's name.

    :raises UnsupportedStateError: Says which and why.
    """
    for column in columns:
        if schema.get_field_index(column) < 0:
            raise UnsupportedStateError(
                f"Expected the column {column!r} of partition_by in the output, found {', '.join(schema.names)}; name one of "
                "these, or add it."
            )
        if not _is_partitionable(schema.field(column).type):
            raise UnsupportedStateError(
                f"Expected partition_by to name columns of whole numbers, strings, dates or booleans, found {column!r} of "
                f"type {schema.field(column).type}; convert it in the stage."
            )
    if set(columns) >= set(schema.names):
        raise UnsupportedStateError(
            f"Expected a column beside those of partition_by, found {', '.join(columns)} alone; leave one of them out."
        )


def split(table: Any, columns: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """
    Split a table by the directories that its rows belong to.

    :return: Directories with the rows in their order, without the columns that the directory tells.
    """
    if not columns or not table.num_rows:
        yield "", table.drop_columns(list(columns))
        return
    rest = table.drop_columns(list(columns))
    for values, rows in _groups(table, columns):
        yield _directory(columns, values), rest.take(rows)


def _groups(table: Any, columns: Sequence[str]) -> Iterator[tuple[tuple[str | None, ...], Any]]:
    import pyarrow as pa

    keys = [f"key_{position}" for position in range(len(columns))]
    texts = [table.column(column).cast(pa.string()) for column in columns]
    numbered = pa.table([*texts, pa.array(range(table.num_rows), pa.int64())], names=[*keys, "row"])
    grouped = numbered.group_by(keys, use_threads=False).aggregate([("row", "list")])
    for group in grouped.to_batches():
        for position in range(group.num_rows):
            values = tuple(group.column(key)[position].as_py() for key in keys)
            yield values, group.column("row_list")[position].values


def _directory(columns: Sequence[str], values: Sequence[str | None]) -> str:
    # Spark has no name for the empty string either.
    return "/".join(
        f"{_escaped(column)}={_escaped(value) if value else _NULL}"
        for column, value in zip(columns, values, strict=True)
    )


def _escaped(text: str) -> str:
    return "".join(f"%{ord(character):02X}" if character in _ESCAPED else character for character in text)


def _is_partitionable(kind: Any) -> bool:
    import pyarrow as pa

    tests = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_date, pa.types.is_boolean)
    return any(test(kind) for test in tests)
