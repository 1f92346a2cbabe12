"""Rows of a SQL sink: staged by tasks, loaded by the driver."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import CorruptStateError, UnsupportedStateError
from airflow_provider_statecheck.spark.sinks.data_files import FileLayout, ParquetSinkWriter
from airflow_provider_statecheck.spark.sinks.sink import Committable, SinkTaskContext, StagedFile
from airflow_provider_statecheck.spark.sinks.sql.tables import CHECKPOINT, LINEAGE, PLACE, ROW
from airflow_provider_statecheck.spark.sinks.target_files import TargetFiles, staging_directory, why_gone
from airflow_provider_statecheck.spark.snapshots.executor_io import ExecutorFiles, HiddenOptions

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table


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


_TEMPORARY, _STAGED = "pg_temp", "statecheck_staged"


@dataclass(frozen=True, slots=True)
class RowLoader:
    """
    Adds rows to a table, or replaces those with the same keys.

    :param table: The table, with the columns of the rows.
    :param keys: By which rows replace others; empty if they do not.
    """

    table: Table
    keys: Sequence[str]

    def load(self, connection: Connection, tables: Iterable[Any]) -> int:
        """
        Load Arrow tables with the columns of the table; of rows with the same keys the last one stays.

        :return: How many rows there were.
        """
        if connection.dialect.name == "sqlite":
            return sum(self._insert(connection, table) for table in tables if table.num_rows)
        if not self.keys:
            return sum(self._copy(connection, self.table, table) for table in tables)
        return self._merge(connection, tables)

    def _insert(self, connection: Connection, table: Any) -> int:
        from sqlalchemy.dialects.sqlite import insert

        statement: Any = insert(self.table)
        if self.keys:
            statement = statement.on_conflict_do_update(
                index_elements=list(self.keys), set_=self._replaced(statement.excluded)
            )
        connection.execute(statement, as_rows(table))
        return int(table.num_rows)

    def _copy(self, connection: Connection, target: Table, table: Any) -> int:
        names = plain_names()
        columns = ", ".join(names.quote(name) for name in table.column_names)
        into = f"COPY {names.format_table(target)} ({columns}) FROM STDIN"
        cursor: Any = connection.connection.cursor()
        cursor.copy_expert(f"{into} WITH (FORMAT csv, ENCODING 'UTF8')", as_csv(table))
        return int(table.num_rows)

    def _merge(self, connection: Connection, tables: Iterable[Any]) -> int:
        staged = self._staged_table()
        connection.execute(_text(f"DROP TABLE IF EXISTS {_TEMPORARY}.{_STAGED}"))
        self._make_staged(connection)
        rows = 0
        for table in tables:
            rows += self._copy(connection, staged, numbered(table, ROW, rows))
        connection.execute(self._upsert(staged))
        staged.drop(connection)
        return rows

    def _upsert(self, staged: Table) -> Any:
        from sqlalchemy import func, select
        from sqlalchemy.dialects.postgresql import insert

        names = [column.name for column in self.table.columns]
        keys = [staged.c[name] for name in self.keys]
        place = func.row_number().over(partition_by=keys, order_by=staged.c[ROW].desc()).label(PLACE)
        ranked = select(*(staged.c[name] for name in names), place).subquery()
        newest = select(*(ranked.c[name] for name in names)).where(ranked.c[PLACE] == 1)
        # Whoever replaces the same rows locks them in the same order, so that neither waits for the other for ever.
        newest = newest.order_by(*(ranked.c[name] for name in self.keys))
        statement = insert(self.table).from_select(names, newest)
        return statement.on_conflict_do_update(index_elements=list(self.keys), set_=self._replaced(statement.excluded))

    def _make_staged(self, connection: Connection) -> None:
        # With the types of the table that is there, whose values convert to nothing else, and are equal as they are there.
        names = plain_names()
        columns = ", ".join(names.quote(column.name) for column in self.table.columns)
        rows = f"SELECT {columns}, CAST(0 AS BIGINT) AS {ROW} FROM {names.format_table(self.table)}"  # noqa: S608 - names, quoted
        cursor: Any = connection.connection.cursor()
        cursor.execute(f"CREATE TEMPORARY TABLE {_STAGED} AS {rows} WITH NO DATA")

    def _staged_table(self) -> Table:
        from sqlalchemy import Column, MetaData, Table

        columns: list[Column[Any]] = [Column(column.name) for column in self.table.columns]
        return Table(_STAGED, MetaData(), *columns, Column(ROW), schema=_TEMPORARY)

    def _replaced(self, excluded: Any) -> dict[str, Any]:
        marks = {LINEAGE, CHECKPOINT}
        names = [c.name for c in self.table.columns if c.name not in marks and c.name not in self.keys]
        replaced = {name: excluded[name] for name in names}
        if LINEAGE in self.table.c:
            replaced |= self._kept_marks(excluded)
        return replaced or {self.keys[0]: excluded[self.keys[0]]}

    def _kept_marks(self, excluded: Any) -> dict[str, Any]:
        # They name who made the row, as long as nobody else wrote to it; only such a row may ever be taken back.
        from sqlalchemy import case, null

        is_ours = self.table.c[LINEAGE] == excluded[LINEAGE]
        return {name: case((is_ours, self.table.c[name]), else_=null()) for name in (LINEAGE, CHECKPOINT)}


def plain_names() -> Any:
    """Return what quotes names for statements that go to psycopg2 without parameters, where a ``%`` is not doubled."""
    from sqlalchemy.dialects import postgresql

    dialect: Any = postgresql.dialect
    return dialect(paramstyle="named").identifier_preparer


def _text(statement: str) -> Any:
    from sqlalchemy import text

    return text(statement)


_ROWS_AT_ONCE = 65536


def staged_rows(files: TargetFiles, committable: Committable) -> Iterator[Any]:
    """
    Read what a task staged, in the order in which it was written.

    :return: Arrow tables.
    :raises CorruptStateError: if a file is gone or was changed.
    :raises StorageError: if the storage fails.
    """
    for file in committable.files:
        rows = 0
        for table in _tables(files, file):
            rows += table.num_rows
            yield table
        if rows != file.rows:
            raise CorruptStateError(
                f"Expected {file.rows} rows in the staged file {file.staged} of {files.target}, found {rows}; somebody changed it. "
                "Restore from an earlier checkpoint, or start over."
            )


def _tables(files: TargetFiles, file: StagedFile) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = f"{staging_directory(files.lineage)}/{file.staged}"
    place = ExecutorFiles(files.storage.base_uri, HiddenOptions(files.storage.options))
    if files.size(name) is None:
        raise CorruptStateError(
            f"Expected the staged file {name} in {files.target}, found none; {why_gone(files.is_local)}"
        )
    with place.redacted_failures(name), place.open(name, file.size_bytes) as opened:
        parquet = pq.ParquetFile(opened, page_checksum_verification=True)
        for batch in parquet.iter_batches(batch_size=_ROWS_AT_ONCE):
            yield pa.Table.from_batches([batch])


_LAYOUT = FileLayout(compression="zstd", partition_by=(), max_file_bytes=512 * 1024 * 1024)


class SqlSinkWriter:
    """
    Writes whole files into the staging directory.

    :param files: The staging directory.
    :param keys: The columns by which rows replace others.
    :param context: Which task writes.
    """

    def __init__(self, files: TargetFiles, keys: Sequence[str], context: SinkTaskContext) -> None:
        self._keys = keys
        self._rows = ParquetSinkWriter(files, _LAYOUT, context)

    def write(self, table: Any) -> None:
        """
        Take a table with the columns of the schema, in any order.

        :raises UnsupportedStateError: if a key is null, which is equal to no other one.
        """
        empty = [name for name in self._keys if table.column(name).null_count]
        if empty:
            raise UnsupportedStateError(
                f"Expected values in the columns of upsert_by, found null in {', '.join(empty)}; leave such rows out in the stage, "
                "or fill the column."
            )
        self._rows.write(table)

    def prepare_commit(self) -> list[dict[str, Any]]:
        """Finish all files and return what commits them."""
        return self._rows.prepare_commit()

    def abort(self) -> None:
        """Delete what was written."""
        self._rows.abort()
