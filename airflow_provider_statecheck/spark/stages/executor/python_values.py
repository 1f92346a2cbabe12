"""Arrow values as Python's, several times faster for dates and times than by making a scalar of each."""

from __future__ import annotations

from typing import Any


def python_values(column: Any) -> list[Any]:
    """
    Return what ``column.to_pylist()`` does.

    :param column: An Arrow array or chunked array.
    """
    import pyarrow as pa

    kind = column.type
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return _times(column, kind)
    return _by_numpy(column) if pa.types.is_date32(kind) else _by_arrow(column)


def _times(column: Any, kind: Any) -> list[Any]:
    import pyarrow as pa

    if kind.tz is None:
        return _by_numpy(column)
    zone = pa.lib.string_to_tzinfo(kind.tz)
    in_utc = _by_numpy(column.cast(pa.timestamp(kind.unit)))
    return [None if each is None else zone.fromutc(each.replace(tzinfo=zone)) for each in in_utc]


def _by_numpy(column: Any) -> list[Any]:
    values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    # What no datetime can hold comes as a number, and is Arrow's to refuse.
    return _by_arrow(column) if int in set(map(type, values)) else values


def _by_arrow(column: Any) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return values
