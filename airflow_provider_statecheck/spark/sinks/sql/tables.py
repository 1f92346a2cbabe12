"""The tables of a sink: the one that output goes to, and the two beside it that make it exactly once."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.spark.sinks.sql.column_types import column_type

if TYPE_CHECKING:
    from sqlalchemy import Table

HEADS = "statecheck_sink_heads"
COMMITS = "statecheck_sink_commits"
LINEAGE = "_statecheck_lineage"
CHECKPOINT = "_statecheck_checkpoint"
"""Columns that say which sink of which job made a row, and with which checkpoint."""
ROW, PLACE = "_statecheck_row", "_statecheck_place"
"""Columns that rows have only while they are loaded."""

_LINEAGE_LENGTH = 12


@dataclass(frozen=True, slots=True)
class TableName:
    """The name of a table, with its schema where that is not the usual one."""

    schema: str | None
    name: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Return the name that a text gives as ``table`` or ``schema.table``."""
        schema, _, name = text.rpartition(".")
        return cls(schema or None, name)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


@functools.cache
def heads_table(schema: str | None) -> Table:
    """Return the table with one row for each sink: its log, which every change of its output changes too."""
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
    """Return the table with one row for each checkpoint whose output is there, for people and as a second guard."""
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
    Return the table that output goes to, as we would make it.

    :param columns: Arrow schema of the output.
    :param keys: Columns of the primary key.
    :raises UnsupportedStateError: if a column has a type that no table holds.
    """
    from sqlalchemy import BigInteger, Column, MetaData, String, Table

    made: list[Column[Any]] = [
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
        made += [Column(LINEAGE, String(_LINEAGE_LENGTH)), Column(CHECKPOINT, BigInteger)]
    return Table(name.name, MetaData(), *made, schema=name.schema)
