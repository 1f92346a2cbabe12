"""Which columns of a database hold which Arrow values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError

if TYPE_CHECKING:
    from sqlalchemy.types import TypeEngine


_DIGITS_OF_UINT64 = 20


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

    if isinstance(wanted, sql.Integer):
        is_wide = is_sqlite or _bytes_of(found) >= _bytes_of(wanted)
        return not (isinstance(found, sql.Integer) and is_wide) and not _is_exact(found)
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


def _bytes_of(found: TypeEngine[Any]) -> int:
    import sqlalchemy.types as sql

    if isinstance(found, sql.SmallInteger):
        return 2
    return 8 if isinstance(found, sql.BigInteger) else 4


def _is_exact(found: TypeEngine[Any]) -> bool:
    import sqlalchemy.types as sql

    return isinstance(found, sql.Numeric) and not isinstance(found, sql.Float)
