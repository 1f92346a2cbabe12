"""
Table or query of a SQL source: columns, types and key ranges.

The ranges of a relation include their upper bound and exclude their lower bound. One extra range contains the rows
without a key.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, SourceError
from airflow_provider_statecheck.spark.connectors.sql.databases import Database, is_cast_to_text, spark_type, sql_type
from airflow_provider_statecheck.spark.snapshots.columns import parse_schema
from airflow_provider_statecheck.spark.tables.schemas import is_arrow_compatible, require_columns
from airflow_provider_statecheck.storage.stored_json import decode_state, decoding, encode_state

if TYPE_CHECKING:
    from pyspark.sql.types import StructType
    from sqlalchemy import ColumnElement, Connection, FromClause, Select

_NO_KEY = "null"


@dataclass(frozen=True, slots=True)
class Relation:
    """A table or a query whose rows have a key."""

    table: str | None
    """Name of the table, with a schema prefix if needed."""
    query: str | None
    key: str
    schema: Any
    """Arrow schema of all columns in use, including the key."""
    casts: tuple[str, ...] = ()
    """Columns that the database casts to text."""

    @property
    def shown(self) -> str:
        """Name of the relation in messages."""
        return "the query" if self.table is None else f"table {self.table}"

    def rows_of(self, keys: KeyRange, names: list[str]) -> Select[Any]:
        """Return the statement that reads columns of a key range."""
        from sqlalchemy import Text, cast, select

        rows = self._rows()
        columns = [cast(rows.c[name], Text).label(name) if name in self.casts else rows.c[name] for name in names]
        return select(*columns).where(self._within(rows, keys))

    def bounds(self, connection: Connection, above: Any) -> tuple[Any, Any]:
        """
        Return the smallest and the largest key above one; ``None`` if there are no rows.

        :raises SourceError: if the largest key changes on its way from the database, so that no range would have its
            row.
        """
        lowest, highest = self._extremes(connection, above)
        # A newer row may be larger; only a key that has changed is above itself. Not-a-number differs from itself.
        is_changed = highest is not None and self._extremes(connection, highest)[1] == highest
        if is_changed or highest != highest:
            raise SourceError(
                f"Expected keys of {self.shown} that mean the same in Python as in the database, found {highest!r} as "
                f"the largest value of {self.key!r}, which is another one there, such as infinity, not-a-number, or a "
                "time or a number in another notation; use another column, or convert it in a query."
            )
        return lowest, highest

    def _extremes(self, connection: Connection, above: Any) -> tuple[Any, Any]:
        from sqlalchemy import func, select

        rows = self._rows()
        key = rows.c[self.key]
        statement: Select[Any] = select(func.min(key), func.max(key))
        lowest, highest = connection.execute(statement if above is None else statement.where(key > above)).one()
        return lowest, highest

    def has_rows_without_key(self, connection: Connection) -> bool:
        """Return whether there are rows whose key is null."""
        from sqlalchemy import literal_column, select

        rows = self._rows()
        statement: Select[Any] = (
            select(literal_column("1")).select_from(rows).where(rows.c[self.key].is_(None)).limit(1)
        )
        return connection.execute(statement).first() is not None

    def ends_of_ranges(self, connection: Connection, count: int, keys: KeyRange) -> list[Any]:
        """Return every ``count``-th key of a range: the upper bounds of ranges of ``count`` rows each."""
        from sqlalchemy import func, select

        rows = self._rows()
        key = rows.c[self.key]
        row_index = func.row_number().over(order_by=key).label("row_index")
        numbered = select(key.label("key"), row_index).where(self._within(rows, keys)).subquery()
        statement = select(numbered.c.key).where(numbered.c.row_index % count == 0).order_by(numbered.c.row_index)
        return list(connection.execute(statement).scalars())

    def count_and_version(self, connection: Connection, version: str, keys: KeyRange) -> tuple[int, Any]:
        """Return the number of rows of a range and their largest version."""
        from sqlalchemy import func, select

        rows = self._rows()
        statement = select(func.count(), func.max(rows.c[version])).where(self._within(rows, keys))
        count, newest = connection.execute(statement).one()
        return int(count), newest

    def _within(self, rows: FromClause, keys: KeyRange) -> ColumnElement[bool]:
        key = rows.c[self.key]
        if keys.up_to is None:
            return key.is_(None)
        up_to: ColumnElement[bool] = key <= keys.up_to
        return up_to if keys.above is None else (key > keys.above) & up_to

    def _rows(self) -> FromClause:
        from sqlalchemy import column, table, text

        columns = [column(field.name, sql_type(field.type)) for field in self.schema]
        if self.query is not None:
            # Escaped, because SQLAlchemy would take a colon for the start of a parameter. A comment may end the query.
            return text(self.query.replace(":", r"\:") + "\n").columns(*columns).subquery("given")
        schema, _, name = str(self.table).rpartition(".")
        return table(name, *columns, schema=schema or None)


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys above an exclusive lower bound, up to an inclusive upper bound."""

    above: Any = None
    """Lower bound; ``None`` for no bound."""
    up_to: Any = None
    """Upper bound; ``None`` for the range of rows without a key."""

    @property
    def name(self) -> str:
        """The name of the range in checkpoints."""
        if self.up_to is None:
            return _NO_KEY
        return json.dumps(encode_state([self.above, self.up_to], "the key of a source"), ensure_ascii=False)

    @classmethod
    def of_name(cls, name: str) -> KeyRange:
        """
        Return the range with a name.

        :raises CorruptStateError: if the name is invalid.
        """
        if name == _NO_KEY:
            return cls()
        with decoding("a range of keys"):
            above, up_to = decode_state(json.loads(name))
            return cls(above, up_to)

    def __str__(self) -> str:
        if self.up_to is None:
            return "rows without a key"
        return f"keys up to {self.up_to}" if self.above is None else f"keys above {self.above} up to {self.up_to}"


def ranges_between(above: Any, ends: Iterable[Any]) -> list[KeyRange]:
    """
    Return consecutive ranges.

    :param above: Lower bound of the first range.
    :param ends: Upper bounds in ascending order; duplicates are ignored.
    """
    distinct = list(dict.fromkeys(ends))
    return [KeyRange(low, high) for low, high in pairwise([above, *distinct])]


def equal_widths(lowest: Any, highest: Any, count: int) -> list[Any]:
    """
    Return the upper bounds of ``count`` ranges of equal width, or of fewer ranges if keys are too close together.

    :raises InvalidConfigurationError: if keys are not numbers, dates or times.
    """
    if isinstance(lowest, bool) or not isinstance(lowest, int | float | Decimal | date):
        raise InvalidConfigurationError(
            f"Expected keys to be numbers, dates or times for ranges, found {type(lowest).__name__}; omit ranges to "
            "cut by counting rows."
        )
    span = highest - lowest
    between = [lowest + _fraction(span, i, count) for i in range(1, count)]
    return [*(end for end in dict.fromkeys(between) if end < highest), highest]


def _fraction(span: Any, number: int, count: int) -> Any:
    # Integer division keeps large integers and times exact.
    return span * number // count if isinstance(span, int | timedelta) else span * number / count


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of a relation with their Spark types."""

    schema: StructType
    casts: tuple[str, ...] = ()
    """Columns that the database casts to text."""

    def encode(self) -> dict[str, Any]:
        """Return the columns as plain values."""
        return {"schema": self.schema.json(), "casts": list(self.casts)}

    @classmethod
    def decode(cls, encoded: Mapping[str, Any]) -> Columns:
        """
        Decode columns from :meth:`encode`.

        :raises CorruptStateError: if the schema is invalid.
        """
        return cls(parse_schema(encoded["schema"]), tuple(encoded["casts"]))

    def select(self, names: Sequence[str], shown: str) -> Columns:
        """
        Return selected columns.

        :param shown: Name of the relation in messages.
        :raises InvalidConfigurationError: if a column does not exist, or its type cannot be transferred to Spark.
        """
        from pyspark.sql.types import StructType

        require_columns(names, self.schema.names, shown)
        fields = [self.schema[name] for name in dict.fromkeys(names)]
        refused = [f"{f.name} {f.dataType.simpleString()}" for f in fields if not is_arrow_compatible(f.dataType)]
        if refused:
            raise _unsupported_columns(shown, refused)
        return Columns(StructType(fields), tuple(name for name in self.casts if name in names))


def columns_of_table(database: Database, table: str, wanted: Sequence[str] | None) -> Columns:
    """
    Return the columns of a table from the database.

    :param wanted: Columns that need a Spark type; all for ``None``.
    :raises InvalidConfigurationError: if there is no such table, or a column has no counterpart in Spark.
    """
    from pyspark.sql.types import StructField, StructType

    with database.connect() as connection:
        found = _column_types(connection, table)
    types = {name: spark_type(kind) for name, kind in found.items()}
    unknown = [f"{name} {found[name]!r}" for name in wanted or types if name in types and types[name] is None]
    if unknown:
        raise _unsupported_columns(f"table {table}", unknown)
    fields = [StructField(name, kind) for name, kind in types.items() if kind is not None]
    return Columns(StructType(fields), tuple(name for name, kind in found.items() if is_cast_to_text(kind)))


def _column_types(connection: Connection, table: str) -> dict[str, Any]:
    from sqlalchemy import inspect
    from sqlalchemy.exc import NoSuchTableError

    schema, _, name = table.rpartition(".")
    try:
        columns = inspect(connection).get_columns(name, schema=schema or None)
    except NoSuchTableError:
        raise InvalidConfigurationError(
            f"Expected a table {table}, found none; write its name as in the database, with its schema before a dot."
        ) from None
    return {column["name"]: column["type"] for column in columns}


def _unsupported_columns(shown: str, refused: Sequence[str]) -> InvalidConfigurationError:
    return InvalidConfigurationError(
        f"Expected columns of types that Spark supports, found {', '.join(refused)} in {shown}; exclude them with "
        "columns, give a schema, or cast them in a query."
    )
