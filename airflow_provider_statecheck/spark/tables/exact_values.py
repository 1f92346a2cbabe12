"""
Values and columns in the types of a schema, without a change.

Arrow cuts, rounds and converts many values without an error, such as a fraction to an integer, bytes to text, or a
number to a date. Here, only values that a type holds become values of this type; all others raise an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta, tzinfo
from functools import lru_cache, partial
from itertools import accumulate, chain
from types import NoneType
from typing import Any
from zoneinfo import ZoneInfo

from airflow_provider_statecheck.lazy import pa, pc
from airflow_provider_statecheck.spark.tables.named_rows import columns_of, find_name


def exact_array(values: Sequence[Any], kind: Any, *, is_case_sensitive: bool = False, zone: str = "UTC") -> Any:
    """
    Return values as an Arrow array; fields of structs are matched by name.

    :param zone: Time zone of times that have none, in a column of moments.
    :raises ValueError: if the type does not hold a value; Arrow raises other errors itself.
    """
    if pa.types.is_struct(kind):
        return _structs(values, kind, is_case_sensitive, zone)
    if pa.types.is_map(kind):
        return _maps(values, kind, is_case_sensitive, zone)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _lists(values, kind, is_case_sensitive, zone)
    _require_held(values, kind)
    array = pa.array(_in_zone(values, kind, zone), kind)
    _require_finite(values, array)
    return array


def exact_columns(
    columns: Iterable[Sequence[Any]], schema: Iterable[Any], *, is_case_sensitive: bool = False, zone: str = "UTC"
) -> list[Any]:
    """
    Return columns of values as Arrow arrays of the fields of a schema.

    :raises ValueError: if a field does not hold a value; names the field.
    """
    return [
        _named(field, partial(exact_array, column, field.type, is_case_sensitive=is_case_sensitive, zone=zone))
        for column, field in zip(columns, schema, strict=True)
    ]


def _named(field: Any, make: Callable[[], Any]) -> Any:
    try:
        array = make()
    except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise ValueError(f"{field.name} {field.type}: {error}") from error
    if not field.nullable and array.null_count:
        raise ValueError(f"{field.name} {field.type}: null in a column that is declared as never null")
    return array


def _structs(values: Sequence[Any], kind: Any, is_case_sensitive: bool, zone: str) -> Any:
    fields = [kind.field(position) for position in range(kind.num_fields)]
    given = [value for value in values if value is not None]
    columns = columns_of(given, [field.name for field in fields], is_case_sensitive=is_case_sensitive)
    arrays = exact_columns(columns, fields, is_case_sensitive=is_case_sensitive, zone=zone)
    if len(given) == len(values):
        return pa.StructArray.from_arrays(arrays, fields=fields)
    places, mask = _places(values)
    # A field that is never null has a value also where the struct is null: Arrow neither casts nor stores it otherwise.
    filled = [pa.concat_arrays([array, _filler(field)]) for array, field in zip(arrays, fields, strict=True)]
    return pa.StructArray.from_arrays([array.take(places) for array in filled], fields=fields, mask=mask)


def _places(values: Sequence[Any]) -> tuple[Any, Any]:
    """Return the position of each value among those that are not null, that after them for null, and which are null."""
    is_null = [value is None for value in values]
    numbers = accumulate((not each for each in is_null), initial=0)
    last = len(values) - sum(is_null)
    places = [last if null else number for null, number in zip(is_null, numbers, strict=False)]
    return pa.array(places, pa.int64()), pa.array(is_null, pa.bool_())


def _filler(field: Any) -> Any:
    """Return what Arrow itself puts into the field of a struct that is null."""
    return pa.array([None], pa.struct([field])).field(0)


def _lists(values: Sequence[Any], kind: Any, is_case_sensitive: bool, zone: str) -> Any:
    for value in values:
        if isinstance(value, str | bytes | Mapping):
            raise TypeError(f"{type(value).__name__} {value!r:.100} is not a list")
    items = list(chain.from_iterable(value for value in values if value is not None))
    (array,) = exact_columns([items], [kind.value_field], is_case_sensitive=is_case_sensitive, zone=zone)
    large = pa.types.is_large_list(kind)
    lists = pa.LargeListArray if large else pa.ListArray
    return lists.from_arrays(_offsets(values, pa.int64() if large else pa.int32()), array, type=kind)


def _maps(values: Sequence[Any], kind: Any, is_case_sensitive: bool, zone: str) -> Any:
    pairs = [list(each.items() if isinstance(each, Mapping) else each) for each in values if each is not None]
    keys, items = [key for each in pairs for key, _ in each], [item for each in pairs for _, item in each]
    arrays = exact_columns(
        [keys, items], [kind.key_field, kind.item_field], is_case_sensitive=is_case_sensitive, zone=zone
    )
    return pa.MapArray.from_arrays(_offsets(values, pa.int32()), *arrays, type=kind)


def _offsets(values: Sequence[Any], kind: Any) -> Any:
    ends = accumulate((0 if value is None else len(value) for value in values), initial=0)
    starts = [None if value is None else end for value, end in zip(values, ends, strict=False)]
    return pa.array([*starts, sum(len(value) for value in values if value is not None)], kind)


def _require_held(values: Sequence[Any], kind: Any) -> None:
    found = {*map(type, values)} - {NoneType}
    for includes, plain, is_held in _RULES:
        if includes(kind):
            if not found <= plain:
                _require_each(values, kind, is_held)
            return


def _require_each(values: Sequence[Any], kind: Any, is_held: Callable[[Any, Any], bool]) -> None:
    for value in values:
        if value is not None and not is_held(value, kind):
            raise ValueError(f"{type(value).__name__} {value!s:.100} would be changed")


def _in_zone(values: Sequence[Any], kind: Any, zone: str) -> Sequence[Any]:
    """Return moments in which times without a zone have one."""
    if zone == "UTC" or not pa.types.is_timestamp(kind) or kind.tz is None:
        return values
    is_local = [isinstance(value, datetime) and value.tzinfo is None for value in values]
    if not any(is_local):
        return values
    zone_info = _zone_of(zone)
    pairs = zip(values, is_local, strict=True)
    return [_moment(value, zone_info) if local else value for value, local in pairs]


def _moment(value: Any, zone: tzinfo) -> Any:
    # As Spark: the second one of an hour that comes twice, and the hour after one that is skipped.
    moments = [value.replace(tzinfo=zone, fold=fold) for fold in (0, 1)]
    return min(moments, key=lambda each: each.utcoffset())


@lru_cache(maxsize=8)
def _zone_of(name: str) -> tzinfo:
    with suppress(ValueError, KeyError, OSError):
        return ZoneInfo(name)
    with suppress(ValueError, KeyError, pa.ArrowException):
        found: tzinfo = pa.lib.string_to_tzinfo(name)
        return found
    raise ValueError(
        f"a time without a zone, and {name!r}, the zone of the session, is none of Python; give the time a zone"
    )


def _holds_integer(value: Any, kind: Any) -> bool:
    if not _is_not_truth(value, kind):
        return False
    return isinstance(value, int) or not hasattr(value, "__int__") or value == int(value)


def _is_not_truth(value: Any, kind: Any) -> bool:
    return not isinstance(value, bool) and type(value).__name__ not in ("bool", "bool_")


def _holds_date(value: Any, kind: Any) -> bool:
    if not isinstance(value, datetime):
        return isinstance(value, date)
    # The day of a moment depends on the zone; rows have their moments in UTC.
    return not value.utcoffset() and value.time() == time() and not _nanoseconds(value)


def _holds_time(value: Any, kind: Any) -> bool:
    if not isinstance(value, datetime | time):
        return not isinstance(value, int | float)
    if value.tzinfo is not None and getattr(kind, "tz", None) is None:
        return False
    if _nanoseconds(value) and kind.unit != "ns":
        return False
    return kind.unit in ("us", "ns") or _microseconds(value) % _MICROSECONDS[kind.unit] == 0


def _holds_duration(value: Any, kind: Any) -> bool:
    return not isinstance(value, int | float) and (kind.unit == "ns" or not _nanoseconds(value))


def _nanoseconds(value: Any) -> int:
    """Return the part of a moment or a duration of pandas that is finer than a microsecond."""
    return getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0)


def _microseconds(value: datetime | time) -> int:
    return value.second * 10**6 + value.microsecond


_MICROSECONDS = {"s": 10**6, "ms": 10**3}


def _is_text(value: Any, kind: Any) -> bool:
    return isinstance(value, str)


def _is_not_text(value: Any, kind: Any) -> bool:
    return not isinstance(value, str)


def _any(*tests: str) -> Callable[[Any], bool]:
    return lambda kind: any(getattr(pa.types, f"is_{test}")(kind) for test in tests)


_RULES: tuple[tuple[Callable[[Any], bool], set[type], Callable[[Any, Any], bool]], ...] = (
    (_any("integer"), {int}, _holds_integer),
    (_any("date"), {date}, _holds_date),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None and kind.unit == "us", {datetime}, _holds_time),
    (_any("timestamp", "time"), set(), _holds_time),
    (_any("duration"), {timedelta}, _holds_duration),
    (_any("floating"), {float, int}, _is_not_truth),
    (_any("string", "large_string"), {str}, _is_text),
    (_any("binary", "large_binary", "fixed_size_binary"), {bytes}, _is_not_text),
)
"""Types, the Python types whose values they hold, and the test of values of other types."""


def _require_finite(values: Sequence[Any], array: Any) -> None:
    if not pa.types.is_float32(array.type) or not pc.any(pc.is_inf(array)).as_py():
        return
    for value, stored in zip(values, array.to_pylist(), strict=True):
        if stored is not None and math.isinf(stored) and not math.isinf(value):
            raise ValueError(f"{value!r} is too large for {array.type}")


def arrow_table(found: Any) -> Any:
    """
    Return the table of an Arrow table, a record batch, or a DataFrame of a library that exports to Arrow.

    :raises TypeError: for another object.
    """
    arrow: Any = pa
    if isinstance(found, arrow.Table):
        return found
    if type(found).__module__.partition(".")[0] == "pandas":
        # Its index is no column, and its missing values are null.
        return arrow.Table.from_pandas(found, preserve_index=False)
    if not hasattr(found, "__arrow_c_stream__") and not hasattr(found, "__arrow_c_array__"):
        raise TypeError(f"{type(found).__name__} instead of a table")
    return arrow.table(found)


def exact_table(table: Any, schema: Any, *, is_case_sensitive: bool = False, zone: str = "UTC") -> Any:
    """
    Return the columns of a schema from an Arrow table, matched by name.

    :raises ValueError: if a column is missing or not in the schema, or if the type of one does not hold a value.
    """
    positions = [find_name(table.column_names, name, is_case_sensitive=is_case_sensitive) for name in schema.names]
    missing = [name for name, at in zip(schema.names, positions, strict=True) if at is None]
    further = [name for at, name in enumerate(table.column_names) if at not in positions]
    if missing or further:
        raise ValueError(f"columns {table.column_names}, without {missing} and with {further} in addition")
    columns = [
        _named(field, partial(exact_cast, table.column(at), field.type, is_case_sensitive=is_case_sensitive, zone=zone))
        for at, field in zip(positions, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def exact_cast(column: Any, kind: Any, *, is_case_sensitive: bool = False, zone: str = "UTC") -> Any:
    """
    Return an Arrow column in another type that holds all of its values.

    :raises ValueError: if the types are of different kinds; Arrow raises other errors itself.
    """
    found = column.type
    if found == kind:
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array(
            [exact_cast(chunk, kind, is_case_sensitive=is_case_sensitive, zone=zone) for chunk in column.chunks], kind
        )
    if pa.types.is_dictionary(found):
        return exact_cast(column.cast(found.value_type), kind, is_case_sensitive=is_case_sensitive, zone=zone)
    if pa.types.is_null(found):
        return pa.nulls(len(column), kind)
    if pa.types.is_nested(kind):
        # By values: their fields are matched by name.
        if not _is_same_nesting(found, kind):
            raise ValueError(f"{found} instead of {kind}")
        return exact_array(column.to_pylist(), kind, is_case_sensitive=is_case_sensitive, zone=zone)
    return _cast_within_kind(column, kind)


def _is_same_nesting(found: Any, kind: Any) -> bool:
    return any(
        includes(found) and includes(kind) for includes in (_any("struct"), _any("map"), _any("list", "large_list"))
    )


_KINDS: tuple[Callable[[Any], bool], ...] = (
    _any("integer", "decimal"),
    _any("integer", "floating"),
    _any("string", "large_string", "string_view"),
    _any("binary", "large_binary", "binary_view", "fixed_size_binary"),
    _any("date"),
    _any("time"),
    _any("duration"),
    lambda kind: pa.types.is_timestamp(kind) and kind.tz is None,
    lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None,
)
"""Types between whose values Arrow's checked cast changes none."""


def _cast_within_kind(column: Any, kind: Any) -> Any:
    if not any(includes(column.type) and includes(kind) for includes in _KINDS):
        raise ValueError(f"{column.type} instead of {kind}")
    if pa.types.is_integer(column.type) and pa.types.is_decimal(kind):
        # Arrow requires digits for all integers of the type, also if the values have fewer.
        column = column.cast(pa.decimal128(20, 0))
    cast = column.cast(kind)
    if pa.types.is_float32(kind) and pc.any(pc.and_(pc.is_inf(cast), pc.invert(pc.is_inf(column)))).as_py():
        raise ValueError(f"a number that is too large for {kind}")
    return cast
