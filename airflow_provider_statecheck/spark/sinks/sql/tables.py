"""Tables and column types of a SQL sink."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError

if TYPE_CHECKING:
    from sqlalchemy import Table
    from sqlalchemy.types import TypeEngine

HEADS = "statecheck_sink_heads"
COMMITS = "statecheck_sink_commits"
LINEAGE = "_statecheck_lineage"
CHECKPOINT = "_statecheck_checkpoint"
"""Columns that record the lineage and the checkpoint of a row."""
ROW, PLACE = "_statecheck_row", "_statecheck_place"
"""Columns that rows have only during an upsert."""
_LINEAGE_LENGTH = 12
_DIGITS_OF_UINT64 = 20
_DIGITS_OF_BYTES = {2: 5, 4: 10, 8: 19}


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


def column_type(name: str, arrow: Any, *, is_sqlite: bool) -> TypeEngine[Any]:
    """
    Return the SQL type of the column for an Arrow type.

    :raises UnsupportedStateError: if there is no SQL type for it.
    """
    import pyarrow.types as kinds
    import sqlalchemy.types as sql

    if is_sqlite and (kinds.is_decimal(arrow) or kinds.is_uint64(arrow)):
        return sql.Text()  # SQLite has no exact numbers except signed 64-bit integers
    if kinds.is_decimal(arrow):
        return sql.Numeric(arrow.precision, arrow.scale)
    if kinds.is_uint64(arrow):
        return sql.Numeric(_DIGITS_OF_UINT64, 0)
    if kinds.is_timestamp(arrow):
        return sql.DateTime(timezone=arrow.tz is not None)
    pairs: list[tuple[Any, type[TypeEngine[Any]]]] = [
        (kinds.is_boolean, sql.Boolean),
        (lambda each: kinds.is_int64(each) or kinds.is_uint32(each), sql.BigInteger),
        (lambda each: kinds.is_int32(each) or kinds.is_uint16(each), sql.Integer),
        (kinds.is_integer, sql.SmallInteger),
        (kinds.is_float64, sql.Double),
        (kinds.is_floating, sql.REAL),
        (lambda each: kinds.is_string(each) or kinds.is_large_string(each), sql.Text),
        (lambda each: kinds.is_binary(each) or kinds.is_large_binary(each), sql.LargeBinary),
        (kinds.is_date, sql.Date),
    ]
    found = next((kind() for is_such, kind in pairs if is_such(arrow)), None)
    if found is None:
        raise UnsupportedStateError(
            f"Expected columns that a table of a database can store, found {name!r} of type {arrow}; convert it in the stage, "
            "for example a nested value to JSON."
        )
    return found


def is_incompatible(wanted: TypeEngine[Any], found: TypeEngine[Any], *, is_sqlite: bool) -> bool:
    """
    Return whether an existing column cannot store the values of the column that the sink would create.

    :param wanted: Result of :func:`column_type`.
    :param found: Type that the database reports.
    """
    import sqlalchemy.types as sql

    if not is_sqlite and _is_narrower(wanted, found):
        return True  # SQLite does not enforce lengths
    if isinstance(wanted, sql.Integer):
        return not isinstance(found, sql.Integer) and not _is_exact(found)
    if isinstance(wanted, sql.Float):
        return not isinstance(found, sql.Float)
    if isinstance(wanted, sql.Numeric):
        return not _is_exact(found)
    if isinstance(wanted, sql.String):
        text_types = (sql.String,) if is_sqlite else (sql.String, sql.JSON, sql.Uuid)
        return not isinstance(found, text_types)
    if isinstance(wanted, sql.DateTime):
        return not isinstance(found, sql.DateTime)
    kind = next(each for each in (sql.Boolean, sql.LargeBinary, sql.Date) if isinstance(wanted, each))
    return not isinstance(found, kind) or isinstance(found, sql.DateTime)


def _is_narrower(wanted: TypeEngine[Any], found: TypeEngine[Any]) -> bool:
    import sqlalchemy.types as sql

    if isinstance(found, sql.Integer) and isinstance(wanted, sql.Integer):
        return _bytes_of(found) < _bytes_of(wanted)
    if _is_exact(found):
        return _has_fewer_digits(wanted, found)
    if isinstance(found, sql.REAL):
        return isinstance(wanted, sql.Double)
    if isinstance(found, sql.CHAR):
        # CHAR pads values. VARCHAR is accepted; the database rejects longer strings at commit.
        return True
    if isinstance(found, sql.DateTime) and isinstance(wanted, sql.DateTime):
        return found.timezone != wanted.timezone
    return False


def _has_fewer_digits(wanted: Any, found: Any) -> bool:
    if found.precision is None:
        return False
    whole, fraction = _digits_of(wanted)
    scale = found.scale or 0
    return bool(scale < fraction or found.precision - scale < whole)


def _digits_of(wanted: Any) -> tuple[int, int]:
    import sqlalchemy.types as sql

    if isinstance(wanted, sql.Integer):
        return _DIGITS_OF_BYTES[_bytes_of(wanted)], 0
    if not _is_exact(wanted):
        return 0, 0  # of another kind, which the caller reports
    return wanted.precision - wanted.scale, wanted.scale


def _bytes_of(found: TypeEngine[Any]) -> int:
    import sqlalchemy.types as sql

    if isinstance(found, sql.SmallInteger):
        return 2
    return 8 if isinstance(found, sql.BigInteger) else 4


def _is_exact(found: TypeEngine[Any]) -> bool:
    import sqlalchemy.types as sql

    return isinstance(found, sql.Numeric) and not isinstance(found, sql.Float)
