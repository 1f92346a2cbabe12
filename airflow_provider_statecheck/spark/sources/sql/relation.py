"""The table or query that a SQL source reads: columns, types and key ranges."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import CorruptStateError, InvalidConfigurationError
from airflow_provider_statecheck.spark.snapshots.columns import parse_schema
from airflow_provider_statecheck.spark.sources.source_columns import crosses, struct_of
from airflow_provider_statecheck.spark.sources.sql.database import Database
from airflow_provider_statecheck.storage.state_codec import decode_state, encode_state

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType
    from sqlalchemy import ColumnElement, Connection, FromClause, Select
    from sqlalchemy.types import TypeEngine


_LARGEST_PRECISION = 38
_DEFAULT_SCALE = 18


def spark_type(found: TypeEngine[Any]) -> DataType | None:
    """Return the type that a column of a table has for Spark; ``None`` if there is none that says the same."""
    import sqlalchemy.types as sql
    from pyspark.sql import types

    if isinstance(found, sql.Numeric) and not isinstance(found, sql.Float):
        return _decimal(found)
    if isinstance(found, sql.DateTime):
        return types.TimestampType() if found.timezone else types.TimestampNTZType()
    pairs: list[tuple[Any, type[DataType]]] = [
        (sql.Boolean, types.BooleanType),
        (sql.Integer, types.LongType),
        (sql.Float, types.DoubleType),
        (sql.Date, types.DateType),
        ((sql.LargeBinary, sql.BINARY, sql.VARBINARY), types.BinaryType),
        ((sql.String, sql.Uuid, sql.JSON), types.StringType),
    ]
    return next((kind() for known, kind in pairs if isinstance(found, known)), None)


def is_cast_to_text(found: TypeEngine[Any]) -> bool:
    """Tell whether the database itself has to turn values into the text that Spark gets."""
    import sqlalchemy.types as sql

    return isinstance(found, sql.Uuid | sql.JSON | sql.Enum)


def sql_type(arrow: Any) -> TypeEngine[Any]:
    """Return as what SQLAlchemy binds and gives values of an Arrow type."""
    import pyarrow as pa
    import sqlalchemy.types as sql

    kinds = pa.types
    if kinds.is_decimal(arrow):
        return sql.Numeric(arrow.precision, arrow.scale)
    if kinds.is_timestamp(arrow):
        return sql.DateTime(timezone=arrow.tz is not None)
    pairs: list[tuple[Any, type[TypeEngine[Any]]]] = [
        (kinds.is_boolean, sql.Boolean),
        (kinds.is_integer, sql.BigInteger),
        (kinds.is_floating, sql.Double),
        (kinds.is_date, sql.Date),
        (kinds.is_binary, sql.LargeBinary),
        (kinds.is_string, sql.Text),
    ]
    return next((kind() for is_such, kind in pairs if is_such(arrow)), sql.NullType())


def _decimal(found: Any) -> DataType | None:
    from pyspark.sql.types import DecimalType

    if found.precision is None:
        return DecimalType(_LARGEST_PRECISION, _DEFAULT_SCALE)
    return DecimalType(found.precision, found.scale or 0) if found.precision <= _LARGEST_PRECISION else None


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns with the types that they have for Spark."""

    schema: StructType
    casts: tuple[str, ...] = ()
    """Those that the database gives as text."""

    def encode(self) -> dict[str, Any]:
        """Return them as plain values."""
        return {"schema": self.schema.json(), "casts": list(self.casts)}

    @classmethod
    def decode(cls, encoded: Mapping[str, Any]) -> Columns:
        """
        Return columns of plain values.

        :raises CorruptStateError: if there is no schema in them.
        """
        return cls(parse_schema(encoded["schema"]), tuple(encoded["casts"]))

    def of(self, names: Sequence[str], shown: str) -> Columns:
        """
        Return some of the columns.

        :param shown: What has them, for the message.
        :raises InvalidConfigurationError: if one is not there, or of a type that Spark does not take from Python.
        """
        from pyspark.sql.types import StructType

        missing = [name for name in names if name not in self.schema.names]
        if missing:
            raise InvalidConfigurationError(
                f"Expected columns of {shown}, found {missing}; it has {self.schema.names}."
            )
        fields = [self.schema[name] for name in dict.fromkeys(names)]
        refused = [f"{field.name} {field.dataType.simpleString()}" for field in fields if not crosses(field.dataType)]
        if refused:
            raise _unreadable(shown, refused)
        return Columns(StructType(fields), tuple(name for name in self.casts if name in names))


def given_columns(schema: Any) -> Columns:
    """
    Return the columns that a user gave.

    :raises InvalidConfigurationError: if it is no schema.
    """
    return Columns(struct_of(schema))


def columns_of_table(database: Database, table: str, wanted: Sequence[str] | None) -> Columns:
    """
    Return what the database says of a table.

    :param wanted: The columns that matter, ``None`` for all.
    :raises InvalidConfigurationError: if there is no such table, or one of them has no counterpart in Spark.
    """
    from pyspark.sql.types import StructField, StructType

    with database.connect() as connection:
        found = _described(connection, table)
    types = {name: spark_type(kind) for name, kind in found.items()}
    unknown = [f"{name} {found[name]!r}" for name in wanted or types if name in types and types[name] is None]
    if unknown:
        raise _unreadable(f"table {table}", unknown)
    fields = [StructField(name, kind) for name, kind in types.items() if kind is not None]
    return Columns(StructType(fields), tuple(name for name, kind in found.items() if is_cast_to_text(kind)))


def _described(connection: Connection, table: str) -> dict[str, Any]:
    from sqlalchemy import inspect
    from sqlalchemy.exc import NoSuchTableError

    schema, _, name = table.rpartition(".")
    try:
        columns = inspect(connection).get_columns(name, schema=schema or None)
    except NoSuchTableError:
        raise InvalidConfigurationError(
            f"Expected a table {table}, found none; write its name as the database keeps it, with its schema before a dot."
        ) from None
    return {column["name"]: column["type"] for column in columns}


def _unreadable(shown: str, refused: Sequence[str]) -> InvalidConfigurationError:
    return InvalidConfigurationError(
        f"Expected columns of types that Spark takes, found {', '.join(refused)} in {shown}; leave them out by columns, give "
        "a schema, or cast them in a query."
    )


_NO_KEY = "null"


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys above one, as far as there is one, up to and with another."""

    above: Any = None
    """``None`` for no bound."""
    up_to: Any = None
    """``None`` for the rows whose key is null."""

    @property
    def name(self) -> str:
        """Return the name by which checkpoints know the range."""
        if self.up_to is None:
            return _NO_KEY
        return json.dumps(encode_state([self.above, self.up_to], "the key of a source"), ensure_ascii=False)

    @classmethod
    def of_name(cls, name: str) -> KeyRange:
        """
        Return the range of a name.

        :raises CorruptStateError: if it is none.
        """
        if name == _NO_KEY:
            return cls()
        try:
            above, up_to = decode_state(json.loads(name))
        except (TypeError, ValueError) as error:
            raise CorruptStateError(f"Expected a range of keys, found {name[:60]!r}: {error}.") from error
        return cls(above, up_to)

    def __str__(self) -> str:
        if self.up_to is None:
            return "rows without a key"
        return f"keys up to {self.up_to}" if self.above is None else f"keys above {self.above} up to {self.up_to}"


def ranges_between(above: Any, ends: Iterable[Any]) -> list[KeyRange]:
    """
    Return ranges without gaps.

    :param above: The key after which the first one begins.
    :param ends: The last key of each, ascending; what comes twice counts once.
    """
    distinct = list(dict.fromkeys(ends))
    return [KeyRange(low, high) for low, high in pairwise([above, *distinct])]


def equal_widths(lowest: Any, highest: Any, count: int) -> list[Any]:
    """
    Return the last key of each of some ranges of equal width; there are fewer where keys are too close together.

    :raises InvalidConfigurationError: if keys are no numbers, days or times.
    """
    if isinstance(lowest, bool) or not isinstance(lowest, int | float | Decimal | date):
        raise InvalidConfigurationError(
            f"Expected keys to be numbers, days or times where ranges is given, found {type(lowest).__name__}; leave it out "
            "to cut by counting rows."
        )
    span = highest - lowest
    between = [lowest + _share(span, i, count) for i in range(1, count)]
    return [*(end for end in dict.fromkeys(between) if end < highest), highest]


def _share(span: Any, number: int, count: int) -> Any:
    # Of whole numbers and times the parts are whole again, however large they are.
    return span * number // count if isinstance(span, int | timedelta) else span * number / count


@dataclass(frozen=True, slots=True)
class Relation:
    """A table or a query whose rows have a key."""

    table: str | None
    """With its schema before a dot, if it has one."""
    query: str | None
    key: str
    schema: Any
    """Arrow schema of all columns that matter, the key with them."""
    casts: tuple[str, ...] = ()
    """Columns that the database gives as text."""

    @property
    def shown(self) -> str:
        """Return what messages call it."""
        return "the query" if self.table is None else f"table {self.table}"

    def rows_of(self, keys: KeyRange, names: list[str]) -> Select[Any]:
        """Return the statement that reads columns of a range."""
        from sqlalchemy import Text, cast, select

        rows = self._from()
        columns = [cast(rows.c[name], Text).label(name) if name in self.casts else rows.c[name] for name in names]
        return select(*columns).where(self._within(rows, keys))

    def bounds(self, connection: Connection, above: Any) -> tuple[Any, Any]:
        """Return the smallest and the largest key above one, ``None`` where there is no row."""
        from sqlalchemy import func, select

        rows = self._from()
        key = rows.c[self.key]
        statement: Select[Any] = select(func.min(key), func.max(key))
        lowest, highest = connection.execute(statement if above is None else statement.where(key > above)).one()
        return lowest, highest

    def has_rows_without_key(self, connection: Connection) -> bool:
        """Tell whether there are rows whose key is null."""
        from sqlalchemy import literal_column, select

        rows = self._from()
        statement: Select[Any] = (
            select(literal_column("1")).select_from(rows).where(rows.c[self.key].is_(None)).limit(1)
        )
        return connection.execute(statement).first() is not None

    def every(self, connection: Connection, count: int, keys: KeyRange) -> list[Any]:
        """Return each key of a range that so many rows, or a multiple of it, lie up to."""
        from sqlalchemy import func, select

        rows = self._from()
        key = rows.c[self.key]
        place = func.row_number().over(order_by=key).label("place")
        numbered = select(key.label("key"), place).where(self._within(rows, keys)).subquery()
        statement = select(numbered.c.key).where(numbered.c.place % count == 0).order_by(numbered.c.place)
        return list(connection.execute(statement).scalars())

    def observed(self, connection: Connection, version: str, keys: KeyRange) -> tuple[int, Any]:
        """Return how many rows a range has and their largest version."""
        from sqlalchemy import func, select

        rows = self._from()
        statement = select(func.count(), func.max(rows.c[version])).where(self._within(rows, keys))
        count, newest = connection.execute(statement).one()
        return int(count), newest

    def _within(self, rows: FromClause, keys: KeyRange) -> ColumnElement[bool]:
        key = rows.c[self.key]
        if keys.up_to is None:
            return key.is_(None)
        up_to: ColumnElement[bool] = key <= keys.up_to
        return up_to if keys.above is None else (key > keys.above) & up_to

    def _from(self) -> FromClause:
        from sqlalchemy import column, table, text

        columns = [column(field.name, sql_type(field.type)) for field in self.schema]
        if self.query is not None:
            # No colon of the user's begins the name of a parameter.
            return text(self.query.replace(":", r"\:")).columns(*columns).subquery("given")
        schema, _, name = str(self.table).rpartition(".")
        return table(name, *columns, schema=schema or None)
