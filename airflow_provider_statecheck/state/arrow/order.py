"""
The order in which rows of state lie, and how it is computed for many rows at once.

It is Arrow's own: ascending by each column, NaN after all numbers and null at the end. Structs go by their fields; lists,
which Arrow does not sort, by how Python writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_MOST_BITS = 62


def order_columns(array: Any, *, nullable: bool = False) -> list[Any]:
    """
    Return columns of numbers, texts, bytes or decimals without null, by which rows order as by an Arrow array.

    :param nullable: Whether there may be nulls, which then go to a column of their own.
    """
    import pyarrow as pa

    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if not nullable:
        return _plain(array)
    nulls = array.is_null().cast(pa.int8())
    return [nulls, *_plain(array)]


def _plain(array: Any) -> list[Any]:
    import pyarrow as pa

    kind = array.type
    if pa.types.is_struct(kind):
        return [column for child in array.flatten() for column in order_columns(child, nullable=True)]
    if pa.types.is_null(kind):
        return []
    return [_filled(_comparable(array))]


def _comparable(array: Any) -> Any:
    import pyarrow as pa
    from pyarrow import types

    kind = array.type
    if types.is_floating(kind):
        return _ordered_floats(array)
    if types.is_boolean(kind):
        return array.cast(pa.int8())
    if types.is_temporal(kind):
        return array.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    if types.is_string_view(kind):
        return array.cast(pa.string())
    if types.is_fixed_size_binary(kind) or types.is_binary_view(kind):
        return array.cast(pa.binary())
    if types.is_nested(kind):
        return pa.array([repr(value) for value in array.to_pylist()], pa.string())
    return array


def _ordered_floats(array: Any) -> Any:
    import numpy as np
    import pyarrow as pa

    values = array.cast(pa.float64()).to_numpy(zero_copy_only=False)
    values = np.where(np.isnan(values), np.nan, values) + 0.0
    bits = values.view(np.int64)
    return pa.array(np.where(bits < 0, bits ^ np.int64(0x7FFFFFFFFFFFFFFF), bits))


def _filled(array: Any) -> Any:
    import pyarrow as pa

    if array.null_count == 0:
        return array
    kind = array.type
    if pa.types.is_integer(kind):
        nothing: Any = 0
    elif pa.types.is_decimal(kind):
        nothing = pa.scalar(0).cast(kind)
    else:
        nothing = "" if pa.types.is_string(kind) or pa.types.is_large_string(kind) else b""
    return array.fill_null(nothing)


def row_tuples(columns: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return the rows of such columns as tuples, which Python compares in the same order."""
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def order_codes(columns: Sequence[Any]) -> Any:
    """
    Return one number for each row, so that rows of such columns order, and are equal, as their numbers are.

    Numbers of different calls say nothing about each other.
    """
    import numpy as np

    codes, bits = np.zeros(len(columns[0]), np.int64), 0
    for column in columns:
        numbers, width = _narrow(_numbers(column))
        if bits + width > _MOST_BITS:
            codes, bits = _ranked(codes)
        if bits + width > _MOST_BITS:
            numbers, width = _ranked(numbers)
        codes = (codes << np.int64(width)) | numbers if width else codes
        bits += width
    return codes


def _numbers(column: Any) -> Any:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_integer(column.type) and column.type != pa.uint64():
        return column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    encoded = column.dictionary_encode()
    ranks = np.empty(len(encoded.dictionary), np.int64)
    ranks[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(ranks))
    return ranks[encoded.indices.to_numpy()]


def _narrow(numbers: Any) -> tuple[Any, int]:
    if len(numbers) == 0:
        return numbers, 0
    least, most = int(numbers.min()), int(numbers.max())
    width = (most - least).bit_length()
    return _ranked(numbers) if width > _MOST_BITS else (numbers - least, width)


def _ranked(numbers: Any) -> tuple[Any, int]:
    import numpy as np

    distinct, ranks = np.unique(numbers, return_inverse=True)
    return ranks.astype(np.int64, copy=False), (len(distinct) - 1).bit_length()
