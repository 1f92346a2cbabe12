"""Arrow types as readable JSON and back."""

from __future__ import annotations

import re
from typing import Any

from airflow_provider_statecheck.exceptions import CorruptStateError, UnsupportedStateError

_PLAIN = (
    *("bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32"),
    *("float64", "string", "large_string", "binary", "large_binary", "date32", "null"),
)
_PARAMETERISED = (
    (re.compile(r"decimal(32|64|128|256)\((\d+), (-?\d+)\)"), "_decimal"),
    (re.compile(r"timestamp\[(s|ms|us)(?:, tz=(.+))?\]"), "_timestamp"),
    (re.compile(r"time(32|64)\[(s|ms|us)\]"), "_time"),
    (re.compile(r"duration\[(s|ms|us)\]"), "_duration"),
    (re.compile(r"fixed_size_binary\[(\d+)\]"), "_binary"),
)


def encode_type(arrow_type: Any) -> str:
    """
    Return the name of an Arrow type that is not nested.

    :raises UnsupportedStateError: for one that cannot be a column of state.
    """
    name = str(arrow_type)
    if _decoded(name) != arrow_type:
        raise UnsupportedStateError(
            f"Expected an Arrow type of numbers, texts, bytes, decimals, dates or times in microseconds or coarser, or a "
            f"list, struct or map of these, as a type of state; found {name}."
        )
    return name


def decode_type(name: str) -> Any:
    """
    Return the Arrow type of a name.

    :raises CorruptStateError: for a name that :func:`encode_type` does not give.
    """
    found = _decoded(name)
    if found is None:
        raise CorruptStateError(f"Expected the name of an Arrow type, found {name!r}.")
    return found


def _decoded(name: str) -> Any:
    import pyarrow as pa

    plain = {str(getattr(pa, factory)()): factory for factory in _PLAIN}
    if name in plain:
        return getattr(pa, plain[name])()
    for pattern, factory in _PARAMETERISED:
        match = pattern.fullmatch(name)
        if match:
            return globals()[factory](*match.groups())
    return None


def _decimal(bits: str, precision: str, scale: str) -> Any:
    import pyarrow as pa

    return getattr(pa, f"decimal{bits}")(int(precision), int(scale))


def _timestamp(unit: str, zone: str | None) -> Any:
    import pyarrow as pa

    return pa.timestamp(unit, tz=zone)


def _time(bits: str, unit: str) -> Any:
    import pyarrow as pa

    return getattr(pa, f"time{bits}")(unit)


def _duration(unit: str) -> Any:
    import pyarrow as pa

    return pa.duration(unit)


def _binary(width: str) -> Any:
    import pyarrow as pa

    return pa.binary(int(width))
