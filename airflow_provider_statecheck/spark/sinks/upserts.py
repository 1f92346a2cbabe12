"""Upserts by key: marks of rows, keys, and the last row of each key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError

LINEAGE, CHECKPOINT = "_statecheck_lineage", "_statecheck_checkpoint"
"""Columns that record the lineage and the checkpoint that inserted a row."""
ROW = "_statecheck_row"
"""Column that rows have only during an upsert."""


def unique_names(argument: str, columns: Sequence[str]) -> tuple[str, ...]:
    """
    Return the column names of an argument.

    :raises InvalidConfigurationError: if it is not a list, or a name is empty or repeated.
    """
    if isinstance(columns, str) or not all(columns) or len(set(columns)) != len(columns):
        raise InvalidConfigurationError(
            f"Expected {argument} as a list of unique column names, found {columns!r}; correct the list."
        )
    return tuple(columns)


def require_key_values(table: Any, keys: Iterable[str]) -> None:
    """
    Require a value in the key columns of each row of an Arrow table.

    :raises UnsupportedStateError: if a key is null or missing.
    """
    empty = [name for name in keys if name not in table.column_names or table.column(name).null_count]
    if empty:
        raise UnsupportedStateError(
            f"Expected values in the columns of upsert_by, found null in {', '.join(empty)}; drop such rows in the stage, "
            "or fill the column."
        )


def numbered(table: Any, first: int = 0) -> Any:
    """Return an Arrow table with the column :data:`ROW`, which numbers its rows."""
    import pyarrow as pa

    return table.append_column(ROW, pa.array(range(first, first + table.num_rows), pa.int64()))


def last_rows(table: Any, keys: Sequence[str]) -> Any:
    """Return the last row of each key, in the order of the rows."""
    newest = numbered(table.select(keys)).group_by(list(keys)).aggregate([(ROW, "max")]).column(f"{ROW}_max")
    return table if len(newest) == table.num_rows else table.take(newest.combine_chunks().sort())
