"""Which columns of a database hold which Arrow values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError

if TYPE_CHECKING:
    from sqlalchemy.types import TypeEngine


_DIGITS_OF_UINT64 = 20
_DIGITS_OF_BYTES = {2: 5, 4: 10, 8: 19}


def column_type(name: str, arrow: Any, *, is_sqlite: bool) -> TypeEngine[Any]:
    """
    Return the type of the column that is made for an Arrow type.

    :raises UnsupportedStateError: if there is none for it.
    """
    import pyarrow.types as kinds
    import sqlalchemy.types as sql

    if is_sqlite and (kinds.is_decimal(arrow) or kinds.is_uint64(arrow)):
        return sql.Text()  # it has no exact numbers but whole ones of 64 bits with a sign
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
            f"Expected columns that a table of a database can hold, found {name!r} of type {arrow}; convert it in the stage, a "
            "nested value to JSON for example."
        )
    return found


def misfit(wanted: TypeEngine[Any], found: TypeEngine[Any], *, is_sqlite: bool) -> bool:
    """
    Tell whether a column that is there cannot hold what a column that we would make could.

    :param wanted: As :func:`column_type` gives it.
    :param found: As the database tells it.
    """
    import sqlalchemy.types as sql

    if not is_sqlite and _is_narrower(wanted, found):
        return True  # SQLite's columns have no lengths
    if isinstance(wanted, sql.Integer):
        return not isinstance(found, sql.Integer) and not _is_exact(found)
    if isinstance(wanted, sql.Float):
        return not isinstance(found, sql.Float)
    if isinstance(wanted, sql.Numeric):
        return not _is_exact(found)
    if isinstance(wanted, sql.String):
        others = () if is_sqlite else (sql.JSON, sql.Uuid)
        return not isinstance(found, (sql.String, *others))
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
        # It pads, which changes values; a text that is too long for VARCHAR is refused with its commit.
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
        return 0, 0  # another kind, which is told by that
    return wanted.precision - wanted.scale, wanted.scale


def _bytes_of(found: TypeEngine[Any]) -> int:
    import sqlalchemy.types as sql

    if isinstance(found, sql.SmallInteger):
        return 2
    return 8 if isinstance(found, sql.BigInteger) else 4


def _is_exact(found: TypeEngine[Any]) -> bool:
    import sqlalchemy.types as sql

    return isinstance(found, sql.Numeric) and not isinstance(found, sql.Float)
