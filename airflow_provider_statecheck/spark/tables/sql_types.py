"""Types of columns in SQL databases, Spark and Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType
    from sqlalchemy.types import TypeEngine

_LARGEST_PRECISION = 38
_DEFAULT_SCALE = 18
_DIGITS_OF_UINT64 = 20
_DIGITS_OF_BYTES = {2: 5, 4: 10, 8: 19}


def spark_type(found: TypeEngine[Any]) -> DataType | None:
    """Return the Spark type of a database column; ``None`` if no Spark type preserves its values."""
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
    """Return whether the database must cast values of a type to text for Spark."""
    import sqlalchemy.types as sql

    return isinstance(found, sql.Uuid | sql.JSON | sql.Enum)


def sql_type(arrow: Any) -> TypeEngine[Any] | None:
    """Return the SQLAlchemy type that stores values of an Arrow type; ``None`` if there is none."""
    import pyarrow.types as kinds
    import sqlalchemy.types as sql

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
    return next((kind() for is_such, kind in pairs if is_such(arrow)), None)


def column_type(name: str, arrow: Any, *, is_sqlite: bool) -> TypeEngine[Any]:
    """
    Return the SQL type of the column for an Arrow type.

    :raises UnsupportedStateError: if there is no SQL type for it.
    """
    import pyarrow.types as kinds
    import sqlalchemy.types as sql

    if is_sqlite and (kinds.is_decimal(arrow) or kinds.is_uint64(arrow)):
        return sql.Text()  # SQLite has no exact numbers except signed 64-bit integers
    found = sql_type(arrow)
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


def _decimal(found: Any) -> DataType | None:
    from pyspark.sql.types import DecimalType

    if found.precision is None:
        return DecimalType(_LARGEST_PRECISION, _DEFAULT_SCALE)
    return DecimalType(found.precision, found.scale or 0) if found.precision <= _LARGEST_PRECISION else None


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
