"""
Partial results of single rows that a Spark task computes with PyArrow.

Only expressions whose values are those of Spark, bit by bit, are computed here: columns, and casts of numbers that
neither round in another way nor fail.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

from airflow_provider_statecheck.lazy import np, pa, pc
from airflow_provider_statecheck.spark.stages.stage import Aggregate

_NAME = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([A-Za-z_]\w*))\s*", re.ASCII)
_CAST = re.compile(r"\s*cast\s*\((.+)\s+as\s+(\w+)\s*\)\s*", re.ASCII | re.IGNORECASE | re.DOTALL)
_LITERALS = frozenset({"true", "false", "null"})
"""Words that are values, even if a column has their name."""
_TYPES = {
    "tinyint": "int8",
    "byte": "int8",
    "smallint": "int16",
    "short": "int16",
    "int": "int32",
    "integer": "int32",
    "bigint": "int64",
    "long": "int64",
    "float": "float32",
    "real": "float32",
    "double": "float64",
}
"""Arrow types by the names of types in SQL."""
_EXACT_DIGITS = 15
"""Digits of integers that are all doubles."""


@dataclass(frozen=True, slots=True)
class RowResult:
    """
    Partial result of an aggregate for each row: the values of a column, or 1 for each value and 0 for null.

    :param type: Arrow type of the result.
    :param steps: Types to which the values are cast in turn.
    """

    column: str
    type: Any
    steps: tuple[Any, ...] = ()
    is_count: bool = False

    @classmethod
    def of(cls, aggregate: Aggregate, kind: Any, find: Callable[[str], Any]) -> Self | None:
        """
        Return the partial result of an aggregate; ``None`` if only Spark computes it.

        :param kind: Arrow type of the result.
        :param find: Returns the Arrow field of a column; ``None`` if there is none.
        """
        parsed = _parsed(aggregate.expression)
        field = None if parsed is None else find(parsed[0])
        if parsed is None or field is None:
            return None
        is_count = aggregate.spark_function == "count"
        steps = (*parsed[1], *(() if is_count else (kind,)))
        types = (field.type, *steps)
        if not all(_is_exact(*pair) for pair in pairwise(types)):
            return None
        return cls(field.name, kind, steps, is_count)

    def values(self, table: Any) -> Any:
        """Return the result for each row of a table."""
        column = table.column(self.column)
        if self.is_count:
            return pc.is_valid(column).cast(self.type)
        for kind in self.steps:
            column = _converted(column, kind)
        return column


def _parsed(expression: str) -> tuple[str, tuple[Any, ...]] | None:
    """Return the name of a column, and the types to which it is cast in turn."""
    found = _NAME.fullmatch(expression)
    if found is not None:
        quoted, plain = found.groups()
        return None if plain is not None and plain.lower() in _LITERALS else (plain or quoted.replace("``", "`"), ())
    cast = _CAST.fullmatch(expression)
    inner = None if cast is None else _parsed(cast[1])
    if cast is None or inner is None or cast[2].lower() not in _TYPES:
        return None
    return inner[0], (*inner[1], pa.type_for_alias(_TYPES[cast[2].lower()]))


def _is_exact(found: Any, wanted: Any) -> bool:
    """Return whether a cast neither fails nor rounds in another way than Spark."""
    kinds = pa.types
    if kinds.is_integer(found):
        is_wider = kinds.is_integer(wanted) and wanted.bit_width >= found.bit_width
        return bool(is_wider or kinds.is_floating(wanted))
    if kinds.is_decimal(found) and kinds.is_decimal(wanted):
        return bool(wanted.scale == found.scale and wanted.precision >= found.precision)
    if kinds.is_float64(wanted) and kinds.is_decimal128(found):
        return bool(found.scale >= 0 and found.precision <= _EXACT_DIGITS)
    is_wider = kinds.is_float32(found) and kinds.is_float64(wanted)
    return bool(is_wider or found.equals(wanted))


def _converted(column: Any, kind: Any) -> Any:
    if pa.types.is_decimal(column.type) and pa.types.is_floating(kind):
        return pa.chunked_array(_doubles(column), kind)
    # Spark rounds large integers to the next number, too.
    return column.cast(kind, safe=False)


def _doubles(column: Any) -> Iterator[Any]:
    """
    Yield decimals as doubles.

    The quotient of two exact doubles is rounded once, as in Java. Arrow multiplies with the rounded inverse.
    """
    divisor = np.float64(10**column.type.scale)
    for chunk in column.chunks:
        words = np.frombuffer(chunk.buffers()[1], dtype=np.int64)
        unscaled = words[chunk.offset * 2 : (chunk.offset + len(chunk)) * 2 : 2]
        mask = chunk.is_null().to_numpy(zero_copy_only=False) if chunk.null_count else None
        yield pa.array(unscaled.astype(np.float64) / divisor, mask=mask)
