"""Tables and column types of a SQL sink."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.spark.sinks.sink import CHECKPOINT, LINEAGE, ROW
from airflow_provider_statecheck.spark.tables.sql_types import column_type

if TYPE_CHECKING:
    from sqlalchemy import Table

HEADS = "statecheck_sink_heads"
COMMITS = "statecheck_sink_commits"
PLACE = "_statecheck_place"
"""Column that ranks the rows of a key during an upsert."""
_LINEAGE_LENGTH = 12


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
        Column("lineage", String(_LINEAGE_LENGTH), primary_key=True),
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
        Column("lineage", String(_LINEAGE_LENGTH), primary_key=True),
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
            nullable=field.nullable and field.name not in keys,
        )
        for field in columns
    ]
    if marks_rows:
        output_columns += [Column(LINEAGE, String(_LINEAGE_LENGTH)), Column(CHECKPOINT, BigInteger)]
    return Table(name.name, MetaData(), *output_columns, schema=name.schema)


def require_columns(columns: Any, keys: Sequence[str]) -> None:
    """
    Require output columns that a table can have, including the key columns.

    :param columns: Arrow schema of the output.
    :param keys: Key columns for upserts; empty for inserts.
    :raises UnsupportedStateError: if names are duplicate, reserved or missing.
    """
    names = list(columns.names)
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated or not names:
        raise UnsupportedStateError(
            f"Expected columns with different names for a table, found {', '.join(repeated) or 'none'} "
            f"{'more than once' if repeated else 'at all'}; rename them."
        )
    reserved = [name for name in (LINEAGE, CHECKPOINT, ROW, PLACE) if name in names]
    if reserved:
        raise UnsupportedStateError(
            f"Expected no column named {reserved[0]!r}, found one in the output; rename it, because the sink uses this name."
        )
    missing = [name for name in keys if name not in names]
    if missing:
        raise UnsupportedStateError(
            f"Expected the columns of upsert_by in the output, found no {', '.join(missing)} among {', '.join(names)}; add the "
            "columns, or correct upsert_by."
        )
