"""Loading of rows into the table of a SQL sink: its columns, staged files, inserts, and upserts."""

from __future__ import annotations

import functools
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.exceptions import CorruptStateError
from airflow_provider_statecheck.lazy import pa, parquet
from airflow_provider_statecheck.spark.connectors.exactly_once.target_files import TargetFiles, missing_file_cause
from airflow_provider_statecheck.spark.connectors.sink import (
    CHECKPOINT,
    LINEAGE,
    ROW,
    Committable,
    numbered,
    require_distinct_names,
    require_output_columns,
)
from airflow_provider_statecheck.spark.connectors.sql.databases import column_type
from airflow_provider_statecheck.spark.snapshots.executor_io import ExecutorFiles, HiddenOptions
from airflow_provider_statecheck.spark.tables.data_files import WrittenFile

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table


HEADS = "statecheck_sink_heads"
COMMITS = "statecheck_sink_commits"
PLACE = "_statecheck_place"
"""Column that ranks the rows of a key during an upsert."""
LINEAGE_LENGTH = 12
"""Characters of a lineage."""


@dataclass(frozen=True, slots=True)
class TableName:
    """Name of a table, with an optional schema."""

    schema: str | None
    name: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Parse ``table`` or ``schema.table``."""
        schema, _, name = text.rpartition(".")
        return cls(schema or None, name)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


@functools.cache
def heads_table(schema: str | None) -> Table:
    """Return the table with the commit log of each sink, one row per sink."""
    from sqlalchemy import BigInteger, Column, MetaData, String, Table, Text

    return Table(
        HEADS,
        MetaData(),
        Column("lineage", String(LINEAGE_LENGTH), primary_key=True),
        Column("table_name", Text, primary_key=True),
        Column("job_name", Text, nullable=False),
        Column("uid", Text, nullable=False),
        Column("epoch", BigInteger, nullable=False),
        Column("log", Text, nullable=False),
        schema=schema,
    )


@functools.cache
def commits_table(schema: str | None) -> Table:
    """
    Return the table with one row per committed checkpoint.

    It serves inspection, and its primary key rejects a second commit of a checkpoint.
    """
    from sqlalchemy import BigInteger, Column, DateTime, MetaData, String, Table, Text, func

    return Table(
        COMMITS,
        MetaData(),
        Column("lineage", String(LINEAGE_LENGTH), primary_key=True),
        Column("table_name", Text, primary_key=True),
        Column("generation", BigInteger, primary_key=True, autoincrement=False),
        Column("checkpoint_id", BigInteger, primary_key=True, autoincrement=False),
        Column("epoch", BigInteger, nullable=False),
        Column("row_count", BigInteger, nullable=False),
        Column("committed_at", DateTime(timezone=True), server_default=func.now(), nullable=False),
        schema=schema,
    )


def output_table(name: TableName, columns: Any, *, keys: Sequence[str], marks_rows: bool, is_sqlite: bool) -> Table:
    """
    Return the output table as the sink would create it.

    :param columns: Arrow schema of the output.
    :param keys: Columns of the primary key.
    :raises UnsupportedStateError: if a column has an unsupported type.
    """
    from sqlalchemy import BigInteger, Column, MetaData, String, Table

    output_columns: list[Column[Any]] = [
        Column(
            field.name,
            column_type(field.name, field.type, is_sqlite=is_sqlite),
            primary_key=field.name in keys,
            autoincrement=False,
            nullable=field.name not in keys,
        )
        for field in columns
    ]
    if marks_rows:
        output_columns += [Column(LINEAGE, String(LINEAGE_LENGTH)), Column(CHECKPOINT, BigInteger)]
    return Table(name.name, MetaData(), *output_columns, schema=name.schema)


def require_columns(columns: Any, keys: Sequence[str]) -> None:
    """
    Require output columns that a table can have, including the key columns.

    :param columns: Arrow schema of the output.
    :param keys: Key columns for upserts; empty for inserts.
    :raises UnsupportedStateError: if names are duplicate, reserved or missing.
    """
    require_distinct_names(columns.names, "a table")
    require_output_columns(columns.names, keys, (LINEAGE, CHECKPOINT, ROW, PLACE))


_TEMPORARY, _STAGED = "pg_temp", "statecheck_staged"
_BATCH_ROWS = 65536


@dataclass(frozen=True, slots=True)
class RowLoader:
    """
    Inserts rows into a table, or upserts them by key.

    :param table: Table with the columns of the rows.
    :param keys: Key columns for upserts; empty for inserts.
    """

    table: Table
    keys: Sequence[str]

    def load(self, connection: Connection, tables: Iterable[Any]) -> int:
        """
        Load Arrow tables with the columns of the table; for equal keys, the last row wins.

        :return: Number of loaded rows.
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
                index_elements=list(self.keys), set_=self._updated_columns(statement.excluded)
            )
        connection.execute(statement, as_rows(table))
        return int(table.num_rows)

    def _copy(self, connection: Connection, target: Table, table: Any) -> int:
        names = name_preparer()
        columns = ", ".join(names.quote(name) for name in table.column_names)
        into = f"COPY {names.format_table(target)} ({columns}) FROM STDIN"
        cursor: Any = connection.connection.cursor()
        cursor.copy_expert(f"{into} WITH (FORMAT csv, ENCODING 'UTF8')", as_csv(table))
        return int(table.num_rows)

    def _merge(self, connection: Connection, tables: Iterable[Any]) -> int:
        staged = self._staged_table()
        self._create_staged_table(connection, staged)
        rows = 0
        for table in tables:
            rows += self._copy(connection, staged, numbered(table, rows))
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
        # A fixed lock order prevents deadlocks between concurrent upserts of the same rows.
        newest = newest.order_by(*(ranked.c[name] for name in self.keys))
        statement = insert(self.table).from_select(names, newest)
        return statement.on_conflict_do_update(
            index_elements=list(self.keys), set_=self._updated_columns(statement.excluded)
        )

    def _create_staged_table(self, connection: Connection, staged: Table) -> None:
        # Uses the column types of the target table: no conversion on insert, and the same equality of keys.
        names = name_preparer()
        columns = ", ".join(names.quote(column.name) for column in self.table.columns)
        rows = f"SELECT {columns}, CAST(0 AS BIGINT) AS {ROW} FROM {names.format_table(self.table)}"  # noqa: S608 - quoted names
        cursor: Any = connection.connection.cursor()
        cursor.execute(f"CREATE TEMPORARY TABLE {staged.name} AS {rows} WITH NO DATA")

    def _staged_table(self) -> Table:
        from sqlalchemy import Column, MetaData, Table

        columns: list[Column[Any]] = [Column(column.name) for column in self.table.columns]
        # A temporary table hides all tables of its name, also the target.
        return Table(f"{_STAGED}_{new_key()}", MetaData(), *columns, Column(ROW), schema=_TEMPORARY)

    def _updated_columns(self, excluded: Any) -> dict[str, Any]:
        marks = {LINEAGE, CHECKPOINT}
        names = [c.name for c in self.table.columns if c.name not in marks and c.name not in self.keys]
        replaced = {name: excluded[name] for name in names}
        if LINEAGE in self.table.c:
            replaced |= self._marks_after_upsert(excluded)
        return replaced or {self.keys[0]: excluded[self.keys[0]]}

    def _marks_after_upsert(self, excluded: Any) -> dict[str, Any]:
        # The marks of a row stay while only one sink writes it; a row that another sink upserted is never rolled back.
        from sqlalchemy import case, null

        is_ours = self.table.c[LINEAGE] == excluded[LINEAGE]
        return {name: case((is_ours, self.table.c[name]), else_=null()) for name in (LINEAGE, CHECKPOINT)}


def staged_rows(files: TargetFiles, committable: Committable) -> Iterator[Any]:
    """
    Read the staged rows of a task in the order in which the task wrote them.

    :return: Arrow tables.
    :raises CorruptStateError: if a file is missing or was modified.
    :raises StorageError: if the storage fails.
    """
    for file in committable.files:
        rows = 0
        for table in _read_tables(files, file):
            rows += table.num_rows
            yield table
        if rows != file.rows:
            raise CorruptStateError(
                f"Expected {counted(file.rows, 'row')} in the staged file {file.name} of {files.target}, found "
                f"{rows}; the file was modified. Restore from an earlier checkpoint, or start over."
            )


def as_csv(table: Any) -> io.BytesIO:
    """Return the rows as CSV for PostgreSQL's COPY, with empty fields for null and quoted strings."""
    import pyarrow.csv as csv

    target = io.BytesIO()
    csv.write_csv(_with_hex_binary(table), target, csv.WriteOptions(include_header=False, quoting_style="needed"))
    target.seek(0)
    return target


def as_rows(table: Any) -> list[dict[str, Any]]:
    """Return the rows as Python values for SQLite, with decimals as text and timestamps in UTC."""
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


def name_preparer() -> Any:
    """Return the preparer that quotes names for psycopg2 statements without parameters, where ``%`` is not escaped."""
    from sqlalchemy.dialects import postgresql

    dialect: Any = postgresql.dialect
    return dialect(paramstyle="named").identifier_preparer


def _with_hex_binary(table: Any) -> Any:
    for number, field in enumerate(table.schema):
        if pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
            found = table.column(number).to_pylist()
            text = pa.array([None if value is None else f"\\x{value.hex()}" for value in found], pa.string())
            table = table.set_column(number, field.name, text)
    return table


def _read_tables(files: TargetFiles, file: WrittenFile) -> Iterator[Any]:
    name = file.name
    executor_files = ExecutorFiles(files.storage.base_uri, HiddenOptions(files.storage.options))
    if files.size(name) is None:
        raise CorruptStateError(
            f"Expected the staged file {name} in {files.target}, found none; {missing_file_cause(files.is_local)}"
        )
    with executor_files.redacted_failures(name), executor_files.open(name, file.size_bytes) as opened:
        rows = parquet.ParquetFile(opened, page_checksum_verification=True)
        for batch in rows.iter_batches(batch_size=_BATCH_ROWS):
            yield pa.Table.from_batches([batch])
