"""
Spark's order of values, as numbers that Arrow compares.

Arrow compares neither structs nor lists. In Spark, null comes first, NaN is the largest number, structs are compared
field by field, and an array comes before the arrays that continue it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_statecheck.lazy import np, pa, pc

_NUMBER_BYTES = 8
_ALL_BITS_BUT_SIGN = 2**63 - 1


def sorted_by(table: Any, names: Sequence[str]) -> Any:
    """Return the rows of a table in the ascending order of columns."""
    table = table.combine_chunks()
    columns = {str(number): _sortable(table.column(name)) for number, name in enumerate(names)}
    order = pc.sort_indices(pa.table(columns), sort_keys=[(name, "ascending") for name in columns])
    return table.take(order).combine_chunks()


def _sortable(column: Any) -> Any:
    if column.null_count or is_nested(column.type):
        return pc.fill_null(order_numbers(column.combine_chunks()), 0)
    return column


def is_nested(kind: Any) -> bool:
    """Return whether values of a type have parts, so that Arrow does not compare them."""
    return bool(pa.types.is_nested(kind))


def order_numbers(array: Any) -> Any:
    """Return an integer above 0 for each value of an array, in the order of the values; null for null."""
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    return pa.array(_numbers(array), mask=array.is_null().to_numpy(zero_copy_only=False))


def _numbers(array: Any) -> Any:
    """Return the numbers of a NumPy array, 0 for null."""
    kind = array.type
    if pa.types.is_null(kind):
        return np.zeros(len(array), dtype=np.int64)
    if pa.types.is_struct(kind):
        ordered = _ordered_structs(array)
    elif is_nested(kind):
        ordered = _ordered_lists(array)
    else:
        ordered = _ordered_floats(array) if pa.types.is_floating(kind) else array
    ranks = pc.rank(ordered, sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64)
    return np.where(array.is_valid().to_numpy(zero_copy_only=False), ranks, 0)


def _ordered_floats(array: Any) -> Any:
    # The bits of floating-point numbers are ordered as integers, those of negative numbers in reverse.
    filled = pc.fill_null(array.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False) + 0.0
    bits = np.where(np.isnan(filled), np.nan, filled).view(np.int64)
    return pa.array(bits ^ ((bits >> 63) & _ALL_BITS_BUT_SIGN))


def _ordered_structs(array: Any) -> Any:
    # A null struct has null fields here.
    fields = [_numbers(field) for field in array.flatten()]
    width = len(fields)
    numbers = np.stack(fields, axis=1).reshape(-1) if fields else np.zeros(0, dtype=np.int64)
    return _as_bytes(numbers, np.arange(len(array) + 1) * width)


def _ordered_lists(array: Any) -> Any:
    # The elements of null lists are no elements here.
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    return _as_bytes(_numbers(array.flatten()), np.concatenate(([0], np.cumsum(lengths))))


def _as_bytes(numbers: Any, offsets: Any) -> Any:
    """Return the numbers between each two offsets as bytes, which are ordered as these sequences of numbers are."""
    bounds = pa.py_buffer((offsets * _NUMBER_BYTES).astype(np.int64).tobytes())
    data = pa.py_buffer(numbers.astype(">i8").tobytes())
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, [None, bounds, data])
