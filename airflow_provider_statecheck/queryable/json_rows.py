"""JSON form of rows in Arrow columns: of a snapshot, without a serializer of state."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.queryable.json_values import scalar_form

_ROWS_AT_ONCE = 16
"""So few rows are converted at once, because the size of large ones may end the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonRows:
    """First rows of a table."""

    columns: tuple[tuple[str, str], ...]
    """Name and Arrow type of each column; names may repeat."""
    rows: tuple[tuple[Any, ...], ...]
    """Values in the order of the columns."""
    has_more: bool
    """Whether the table has more rows."""


def first_rows(schema: Any, batches: Iterator[Any], limit: int, max_bytes: int | None = None) -> JsonRows:
    """
    Return the first rows of a table; later batches are not read.

    :param schema: Arrow schema of the batches.
    :param limit: Largest number of rows.
    :param max_bytes: Largest size of the rows as JSON; ``None`` for any. At least one row is returned.
    """
    rows: list[tuple[Any, ...]] = []
    size, has_more = 0, False
    for row in _rows(batches, limit + 1):
        size += 0 if max_bytes is None else len(json.dumps(row, ensure_ascii=False).encode())
        has_more = len(rows) == limit or (max_bytes is not None and bool(rows) and size > max_bytes)
        if has_more:
            break
        rows.append(row)
    columns = tuple((field.name, str(field.type)) for field in schema)
    return JsonRows(columns=columns, rows=tuple(rows), has_more=has_more)


def json_column(values: Any) -> list[Any]:
    """
    Return the values of an Arrow array as values for ``json.dumps``.

    Values have the form of :mod:`~airflow_provider_statecheck.queryable.json_values`. A struct whose fields have equal
    names is a list of pairs, and a date or time that Python does not have is the text that Arrow writes.

    :raises UnsupportedStateError: for a type that state cannot have.
    """
    from pyarrow import types

    if types.is_struct(values.type):
        return _structs(values)
    if types.is_map(values.type):
        return [each.as_py() if not each.is_valid else _map(each.values) for each in values]
    if types.is_list(values.type):
        return [json_column(each.values) if each.is_valid else None for each in values]
    return _scalars(values)


def _rows(batches: Iterator[Any], limit: int) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        part = batch.slice(0, limit)
        limit -= part.num_rows
        for start in range(0, part.num_rows, _ROWS_AT_ONCE):
            yield from zip(*map(json_column, part.slice(start, _ROWS_AT_ONCE).columns), strict=True)
        if not limit:
            return


def _structs(values: Any) -> list[Any]:
    names = [field.name for field in values.type]
    rows = zip(*map(json_column, values.flatten()), strict=True)
    return [_struct(names, row) if is_valid else None for row, is_valid in zip(rows, values.is_valid(), strict=True)]


def _struct(names: Sequence[str], row: Sequence[Any]) -> Any:
    pairs = list(zip(names, row, strict=True))
    return dict(pairs) if len(set(names)) == len(names) else [list(pair) for pair in pairs]


def _map(entries: Any) -> Any:
    keys, values = (json_column(each) for each in entries.flatten())
    pairs = zip(keys, values, strict=True)
    return dict(pairs) if all(isinstance(key, str) for key in keys) else [list(pair) for pair in pairs]


def _scalars(values: Any) -> list[Any]:
    import pyarrow as pa

    encode = scalar_form(values.type).encode
    try:
        return [None if each is None else encode(each) for each in values.to_pylist()]
    except (ValueError, OverflowError):
        return list(values.cast(pa.string()).to_pylist())
