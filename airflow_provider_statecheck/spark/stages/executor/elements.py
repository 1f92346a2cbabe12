"""Elements of a Spark task: rows, tables, and their order by key group."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.lazy import np, pa, pc
from airflow_provider_statecheck.spark.connectors.limits import (
    MALFORMED,
    OUTSIDE_OF_YEARS,
    TargetLimits,
    limits_of,
)
from airflow_provider_statecheck.spark.stages.planning import KEY_GROUP_COLUMN
from airflow_provider_statecheck.spark.tables.data_files import scratch_directory
from airflow_provider_statecheck.spark.tables.exact_values import exact_columns
from airflow_provider_statecheck.spark.tables.named_rows import columns_of, row_type
from airflow_provider_statecheck.state.combining.ordering import sorted_by
from airflow_provider_statecheck.state.keys.key_serializer import KeyBatch, KeySerializer

CONTROL = "__statecheck_control"
"""Column with a message instead of data; null in rows with data."""
ROWS_COLUMN = "__statecheck_rows"
"""Column with the number of rows that Spark has combined to one before the shuffle."""
OVERFLOW_PREFIX = "__statecheck_overflow_"
"""Start of the name of a column that tells whether a sum of rows that Spark has combined is too large for its type."""
EMPTY_MESSAGE = b""
"""A message without content, sent to make a subtask run."""

BUFFER_BYTES = 64 * 1024 * 1024
"""Size of the rows of a task in memory before they are spilled."""
CHUNK_ROWS = 64 * 1024
"""Least number of rows of a table, except of the last one."""


@dataclass(frozen=True, slots=True)
class PackedRows:
    """
    Spark function that packs each batch of rows into one value, with the types that functions see.

    :param columns: Names of the columns, which Spark sends under positional names.
    :param most_bytes: Largest size of the values of a task together; the one that exceeds it is null, and the last one.
    """

    columns: tuple[str, ...]
    most_bytes: int

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the packed batches."""
        size = 0
        for batch in batches:
            named = batch.rename_columns(list(self.columns))
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, named.schema) as writer:
                writer.write_batch(named)
            packed = sink.getvalue()
            size += packed.size
            value = packed.to_pybytes() if size <= self.most_bytes else None
            yield pa.RecordBatch.from_arrays([pa.array([value], pa.binary())], names=["rows"])
            if value is None:
                return

    @staticmethod
    def rows_of(packed: bytes) -> list[Any]:
        """Return the rows of a packed batch as named tuples."""
        return rows_of(pa.ipc.open_stream(pa.py_buffer(packed)).read_all())


class Elements:
    """
    A batch of elements with one schema.

    :param table: The elements as a table.
    :param values: The elements as a function emitted them, if there is no table.
    :param is_case_sensitive: Whether the names of their values match those of the columns only in the same case.
    :param zone: Time zone of times that have none, in a column of the type timestamp.
    """

    def __init__(
        self,
        schema: Any,
        *,
        table: Any = None,
        values: Sequence[Any] = (),
        is_case_sensitive: bool = False,
        zone: str = "UTC",
    ) -> None:
        self.schema = schema
        self._is_case_sensitive = is_case_sensitive
        self._zone = zone
        self._table = table
        self._values = values

    def __len__(self) -> int:
        return len(self._values) if self._table is None else int(self._table.num_rows)

    def rows(self) -> Sequence[Any]:
        """Return the elements as named tuples, or as the function emitted them."""
        return self._values if self._table is None else rows_of(self._table)

    def table(self) -> Any:
        """
        Return the elements as an Arrow table.

        :raises UnsupportedStateError: if an element does not match the schema.
        """
        if self._table is None:
            self._table = table_of(
                self._values, self.schema, is_case_sensitive=self._is_case_sensitive, zone=self._zone
            )
        return self._table


def rows_of(table: Any) -> list[Any]:
    """
    Return the rows of a table as named tuples of :func:`row_type`.

    :raises UnsupportedStateError: if Python has no value for one of the table.
    """
    # Equivalent to _make, without a Python frame for each row.
    make = partial(tuple.__new__, row_type(tuple(table.column_names)))
    try:
        columns = [python_values(column) for column in table.columns]
    except (ValueError, OverflowError) as error:
        raise _unreadable(table, error) from error
    return list(map(make, zip(*columns, strict=True)))


def _unreadable(table: Any, error: Exception) -> UnsupportedStateError:
    limits = TargetLimits(target="Python", limits=limits_of(table.schema, (OUTSIDE_OF_YEARS, MALFORMED)))
    found = [f"{each.shown} has {count} {each.words}" for each, count in limits.violated(table)]
    return UnsupportedStateError(
        f"Expected values that Python has, too, in the rows of a function, found in {counted(table.num_rows, 'row')}: "
        f"{'; '.join(found) or error}. Repair them before the function, such as null where year(column) not between 1 "
        "and 9999 or make_valid_utf8(column), filter out their rows, or leave out columns that the function does not "
        "read."
    )


def times_of(table: Any, column: str | None) -> list[int | None] | None:
    """Return the times of the rows in milliseconds since 1970; ``None`` without a time column."""
    if column is None:
        return None
    times: list[int | None] = table.column(column).cast(pa.timestamp("ms"), safe=False).cast(pa.int64()).to_pylist()
    return times


def table_of(values: Sequence[Any], schema: Any, *, is_case_sensitive: bool = False, zone: str = "UTC") -> Any:
    """
    Convert emitted values to a table.

    :param values: Rows, mappings or dataclasses, which are matched with the columns by name; tuples in the order of the
        columns; or bare values for a single column.
    :raises UnsupportedStateError: if a value does not match the schema.
    """
    try:
        columns = columns_of(values, schema.names, is_case_sensitive=is_case_sensitive)
        arrays = exact_columns(columns, schema, is_case_sensitive=is_case_sensitive, zone=zone)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, KeyError, AttributeError) as error:
        raise UnsupportedStateError(
            f"Expected elements with the columns {', '.join(f'{f.name} {f.type}' for f in schema)}, found others: "
            f"{error}. Change the output of the function, or its output=."
        ) from error
    return pa.Table.from_arrays(arrays, schema=schema)


def python_values(column: Any) -> list[Any]:
    """
    Return the same values as ``column.to_pylist()``, faster for dates and times.

    :param column: An Arrow array or chunked array.
    """
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return _timestamps(column, kind)
    return _through_numpy(column) if pa.types.is_date32(kind) else _through_arrow(column)


def _timestamps(column: Any, kind: Any) -> list[Any]:
    if kind.tz is None:
        return _through_numpy(column)
    zone = pa.lib.string_to_tzinfo(kind.tz)
    in_utc = _through_numpy(column.cast(pa.timestamp(kind.unit)))
    return [None if time is None else zone.fromutc(time.replace(tzinfo=zone)) for time in in_utc]


def _through_numpy(column: Any) -> list[Any]:
    values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    # NumPy returns integers for times outside the range of datetime, and null for the first one; Arrow raises the
    # proper error.
    is_outside = int in set(map(type, values)) or values.count(None) != column.null_count
    return _through_arrow(column) if is_outside else values


def _through_arrow(column: Any) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return values


@dataclass(frozen=True, slots=True)
class KeyedChunk:
    """Rows of some keys, ordered by key."""

    table: Any
    """The user's columns, ordered by key group and key."""
    keys: KeyBatch
    """Distinct keys in the order of the table."""
    starts: Sequence[int]
    """First row of each key, followed by the number of rows."""

    @classmethod
    def of(cls, table: Any, serializer: KeySerializer) -> KeyedChunk:
        """
        Find the keys of a table.

        :param table: A table ordered by key group and key, with a key group column.
        :raises UnsupportedStateError: if a key, or a part of it, is null.
        """
        columns = [single(table.column(KEY_GROUP_COLUMN)), *key_columns_of(table, serializer)]
        starts = _starts(columns)
        positions = pa.array(starts[:-1])
        distinct = [column.take(positions) for column in columns]
        return cls(table.drop_columns([KEY_GROUP_COLUMN]), KeyBatch(distinct[0], tuple(distinct[1:])), starts.tolist())

    @property
    def last_key_group(self) -> int:
        """Key group of the last row."""
        return int(self.keys.key_groups[-1].as_py())

    def spans(self, serializer: KeySerializer) -> Iterator[tuple[Any, int, int, int]]:
        """Yield each key with its key group, first row, and the row after its last."""
        keys = serializer.from_columns(self.keys.columns)
        groups = self.keys.key_groups.to_pylist()
        return zip(keys, groups, self.starts[:-1], self.starts[1:], strict=True)


def _starts(columns: Sequence[Any]) -> Any:
    rows = len(columns[0])
    differs = np.zeros(max(rows - 1, 0), dtype=bool)
    for column in columns:
        differs |= _differ(column.slice(1), column.slice(0, max(rows - 1, 0))).to_numpy(zero_copy_only=False)
    inner = np.flatnonzero(differs) + 1
    return np.concatenate(([0], inner, [rows]))


def _differ(column: Any, other: Any) -> Any:
    differs = pc.not_equal(column, other)
    if pa.types.is_floating(column.type):
        # All NaN values are one key.
        return pc.and_not(differs, pc.and_(pc.is_nan(column), pc.is_nan(other)))
    return differs


def key_columns_of(table: Any, serializer: KeySerializer) -> tuple[Any, ...]:
    """
    Return the key columns in their stored form.

    :raises UnsupportedStateError: if a key, or a part of it, is null.
    """
    columns = [single(table.column(field.name)) for field in serializer.fields]
    _require_keys(serializer, columns)
    return serializer.normalized_columns(columns)


def single(column: Any) -> Any:
    """Return a chunked column as one array."""
    combined = column.combine_chunks()
    return combined.chunk(0) if hasattr(combined, "num_chunks") and combined.num_chunks == 1 else combined


def _require_keys(serializer: KeySerializer, columns: Sequence[Any]) -> None:
    for field, column in zip(serializer.fields, columns, strict=True):
        if column.null_count:
            raise UnsupportedStateError(
                f"Expected a key in the column {field.name!r} of every row, found null in "
                f"{counted(column.null_count, 'row')}; filter out these rows, or replace null by a value."
            )


def tables_by_key_group(batches: Iterable[Any], order: tuple[str, ...]) -> Iterator[Any]:
    """
    Read all record batches, then yield sorted tables of complete key groups, in ascending order; none without rows.

    Sorted runs that exceed the buffer are spilled to local files. A single key group must fit into memory.

    :param order: Columns that order the rows of a table as Spark orders them, the key group first.
    """
    with scratch_directory() as folder:
        runs: list[_MemoryRun] = []
        buffered: list[Any] = []
        size = 0
        for batch in batches:
            buffered.append(batch)
            size += batch.nbytes
            if size >= BUFFER_BYTES:
                runs.append(_SpilledRun(sorted_by(pa.Table.from_batches(buffered), order), folder))
                buffered, size = [], 0
        if buffered:
            runs.append(_MemoryRun(sorted_by(pa.Table.from_batches(buffered), order)))
        for groups in _chunks_of_groups(runs):
            tables = [run.read(groups[0], groups[-1]) for run in runs]
            yield tables[0] if len(tables) == 1 else sorted_by(pa.concat_tables(tables), order)


def _chunks_of_groups(runs: list[_MemoryRun]) -> Iterator[list[int]]:
    chunk: list[int] = []
    rows = 0
    for group in sorted({group for run in runs for group in run.rows_by_group}):
        chunk.append(group)
        rows += sum(run.rows_by_group.get(group, 0) for run in runs)
        if rows >= CHUNK_ROWS:
            yield chunk
            chunk, rows = [], 0
    if chunk:
        yield chunk


class _MemoryRun:
    """A sorted run in memory."""

    def __init__(self, table: Any) -> None:
        groups = table.column(KEY_GROUP_COLUMN).to_numpy()
        values, starts = np.unique(groups, return_index=True)
        self._starts = [*starts.tolist(), table.num_rows]
        self._groups = values.tolist()
        self._table = table
        self.rows_by_group = {g: self._starts[i + 1] - self._starts[i] for i, g in enumerate(self._groups)}

    def read(self, first: int, last: int) -> Any:
        """Return the rows of the key groups from ``first`` to ``last``."""
        from bisect import bisect_left, bisect_right

        begin = self._starts[bisect_left(self._groups, first)]
        return self._table.slice(begin, self._starts[bisect_right(self._groups, last)] - begin)


class _SpilledRun(_MemoryRun):
    """A sorted run in a local file that is memory-mapped, so that only the rows that are read occupy memory."""

    def __init__(self, table: Any, folder: str) -> None:
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            path = Path(file.name)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        super().__init__(pa.ipc.open_file(pa.memory_map(str(path))).read_all().combine_chunks())
