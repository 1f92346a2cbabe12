"""Elements on their way through the functions of a task: as rows for Python, as a table for Arrow, made when asked for."""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from typing import Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.spark.stages.executor.python_values import python_values


class Elements:
    """
    Some elements of one schema.

    :param schema: The Arrow schema.
    :param table: The elements as a table.
    :param values: The elements as a function gave them, where there is no table.
    """

    def __init__(self, schema: Any, *, table: Any = None, values: Sequence[Any] = ()) -> None:
        self.schema = schema
        self._table = table
        self._values = values

    def __len__(self) -> int:
        return len(self._values) if self._table is None else int(self._table.num_rows)

    def rows(self) -> Sequence[Any]:
        """Return named tuples, or what the function gave."""
        return self._values if self._table is None else rows_of(self._table)

    def table(self) -> Any:
        """
        Return an Arrow table of the schema.

        :raises UnsupportedStateError: if a function gave what does not fit it.
        """
        if self._table is None:
            self._table = table_of(self._values, self.schema)
        return self._table


def rows_of(table: Any) -> list[Any]:
    """Return the rows of a table as named tuples; a column whose name is no identifier is reached by its position."""
    # As _make does it, without a frame of Python for each row.
    make = partial(tuple.__new__, row_type(tuple(table.column_names)))
    columns = [python_values(column) for column in table.columns]
    return list(map(make, zip(*columns, strict=True)))


def times_of(table: Any, column: str | None) -> list[int | None] | None:
    """Return the times of the rows in milliseconds since 1970, ``None`` where no column has them."""
    import pyarrow as pa

    if column is None:
        return None
    times: list[int | None] = table.column(column).cast(pa.timestamp("ms"), safe=False).cast(pa.int64()).to_pylist()
    return times


@lru_cache(maxsize=64)
def row_type(names: tuple[str, ...]) -> Any:
    """Return the type of rows with columns of some names."""
    return namedtuple("Row", names, rename=True)  # noqa: PYI024 - the names are known when it runs


def table_of(values: Sequence[Any], schema: Any) -> Any:
    """
    Return what a function gave as a table.

    :param values: Tuples in the order of the columns, mappings, dataclasses, or bare values of one column.

    :raises UnsupportedStateError: for what does not fit the schema.
    """
    import pyarrow as pa

    try:
        columns = _columns(values, schema.names)
        arrays = [pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
    except (pa.ArrowException, TypeError, ValueError, KeyError, AttributeError) as error:
        raise UnsupportedStateError(
            f"Expected elements with the columns {', '.join(f'{f.name} {f.type}' for f in schema)}, found others: {error}. "
            f"Change what the function gives, or its output=."
        ) from error
    return pa.Table.from_arrays(arrays, schema=schema)


def _columns(values: Sequence[Any], names: Sequence[str]) -> Iterable[Sequence[Any]]:
    if not values:
        return [()] * len(names)
    first = values[0]
    if isinstance(first, tuple):
        return _of_width(list(zip(*values, strict=True)), names)
    if isinstance(first, dict):
        return [[value[name] for value in values] for name in names]
    if dataclasses.is_dataclass(first):
        return [[getattr(value, name) for value in values] for name in names]
    return _of_width([values], names)


def _of_width(columns: list[Any], names: Sequence[str]) -> list[Any]:
    if len(columns) != len(names):
        raise ValueError(f"{len(columns)} columns in place of {len(names)}")
    return columns
