"""Types of columns: of a database, of Spark, and those in which SQLAlchemy gives values of either."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.types import DataType
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
