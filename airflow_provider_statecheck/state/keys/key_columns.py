"""Whole Arrow columns of keys: normal form, hashes and key groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.state.keys.key_types import (
    LONG_DIGITS,
    PRIME_1,
    PRIME_2,
    PRIME_3,
    PRIME_4,
    PRIME_5,
    SPARK_SEED,
    KeyType,
    key_type_of,
)

_MASK = (1 << 64) - 1
_BYTES_AT_ONCE = 1 << 22


def hash_ints(values: Any, seeds: Any) -> Any:
    """Return the hashes of whole numbers as such of 32 bits."""
    import numpy as np

    words = values.astype(np.int32).view(np.uint32).astype(np.uint64)
    return _avalanche(_with_4_bytes(seeds + _number(PRIME_5 + 4), words))


def hash_longs(values: Any, seeds: Any) -> Any:
    """Return the hashes of whole numbers as such of 64 bits."""
    import numpy as np

    words = values.astype(np.int64).view(np.uint64)
    return _avalanche(_with_8_bytes(seeds + _number(PRIME_5 + 8), words))


def hash_byte_strings(column: Any, seeds: Any) -> Any:
    """Return the hashes of the values of an Arrow array of text or bytes without nulls; those of one length go together."""
    import numpy as np

    starts, lengths, data = _buffers(column)
    hashed = np.empty(len(seeds), dtype=np.uint64)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        for some in np.array_split(rows, len(rows) * length // _BYTES_AT_ONCE + 1):
            hashed[some] = _of_matrix(data[starts[some][:, None] + np.arange(length)], seeds[some])
    return hashed


def _buffers(column: Any) -> tuple[Any, Any, Any]:
    import numpy as np
    import pyarrow as pa

    if not len(column):
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint8)
    large = column.cast(pa.large_binary())
    _, offsets, data = large.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int64)[large.offset : large.offset + len(large) + 1]
    content = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, np.uint8)
    return bounds[:-1], np.diff(bounds), content


def _of_matrix(matrix: Any, seeds: Any) -> Any:
    import numpy as np

    length = matrix.shape[1]
    words = np.ascontiguousarray(matrix[:, : length - length % 8]).view(np.uint64)
    in_stripes = length // 32 * 4
    hashed = _of_stripes(words[:, :in_stripes], seeds) if in_stripes else seeds + _number(PRIME_5)
    hashed = hashed + _number(length)
    for position in range(in_stripes, length // 8):
        hashed = _with_8_bytes(hashed, words[:, position])
    if length % 8 >= 4:
        half = np.ascontiguousarray(matrix[:, length // 8 * 8 : length // 8 * 8 + 4]).view(np.uint32)
        hashed = _with_4_bytes(hashed, half[:, 0].astype(np.uint64))
    for position in range(length - length % 4, length):
        byte = matrix[:, position].astype(np.uint64)
        hashed = _rotated(hashed ^ byte * _number(PRIME_5), 11) * _number(PRIME_1)
    return _avalanche(hashed)


def _of_stripes(words: Any, seeds: Any) -> Any:
    lanes = [seeds + _number(first) for first in (PRIME_1 + PRIME_2, PRIME_2, 0, -PRIME_1)]
    for position in range(words.shape[1]):
        lanes[position % 4] = _round(lanes[position % 4], words[:, position])
    hashed = sum(_rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
    for lane in lanes:
        hashed = (hashed ^ _round(0 * lane, lane)) * _number(PRIME_1) + _number(PRIME_4)
    return hashed


def _round(lane: Any, word: Any) -> Any:
    return _rotated(lane + word * _number(PRIME_2), 31) * _number(PRIME_1)


def _with_8_bytes(hashed: Any, word: Any) -> Any:
    return _rotated(hashed ^ _round(0 * word, word), 27) * _number(PRIME_1) + _number(PRIME_4)


def _with_4_bytes(hashed: Any, word: Any) -> Any:
    return _rotated(hashed ^ word * _number(PRIME_1), 23) * _number(PRIME_2) + _number(PRIME_3)


def _rotated(value: Any, bits: int) -> Any:
    return value << _number(bits) | value >> _number(64 - bits)


def _avalanche(hashed: Any) -> Any:
    hashed = (hashed ^ hashed >> _number(33)) * _number(PRIME_2)
    hashed = (hashed ^ hashed >> _number(29)) * _number(PRIME_3)
    return hashed ^ hashed >> _number(32)


def _number(value: int) -> Any:
    import numpy as np

    return np.uint64(value & _MASK)


_AS_INTS = frozenset({"boolean", "tinyint", "smallint", "int", "date"})
_AS_LONGS = frozenset({"bigint", "timestamp", "timestamp_ntz"})


def normalized_column(name: str, data_type: Any, column: Any) -> Any:
    """
    Return an Arrow array with the values of a key column in the one form in which they are stored, compared and hashed.

    :param data_type: The Arrow type that the column has to have, though perhaps in another layout.
    :raises InvalidConfigurationError: for a null.
    :raises UnsupportedStateError: for a column of another type, or values that have no such form.
    """
    import pyarrow as pa

    wanted = key_type_of(data_type)
    if key_type_of(column.type).name != wanted.name:
        raise UnsupportedStateError(f"Expected the key column {name} to be a {wanted.name}, found {column.type}.")
    if column.null_count:
        raise InvalidConfigurationError(
            f"Expected a key in each row, found {column.null_count} rows without {name}; filter them out before."
        )
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    try:
        cast = whole.cast(wanted.arrow_type)
    except pa.ArrowInvalid as error:
        raise UnsupportedStateError(f"Expected the key column {name} to be a {wanted.name}: {error}.") from error
    return _without_negative_zero(cast) if pa.types.is_floating(cast.type) else cast


def key_groups(columns: Sequence[Any], max_parallelism: int) -> Any:
    """
    Return the key groups of keys, as a numpy array of int32.

    :param columns: Arrow arrays in the form of :func:`normalized_column`, all of one length.
    :raises UnsupportedStateError: for a type that cannot be part of a key.
    """
    import numpy as np

    hashed = np.full(len(columns[0]), SPARK_SEED, dtype=np.uint64)
    for column in columns:
        hashed = _hashed(key_type_of(column.type), column, hashed)
    return (hashed.view(np.int64) % max_parallelism).astype(np.int32)


def _hashed(key_type: KeyType, column: Any, seeds: Any) -> Any:
    import numpy as np

    if key_type.name in _AS_INTS:
        return hash_ints(_numbers(column), seeds)
    if key_type.name in _AS_LONGS:
        return hash_longs(_numbers(column), seeds)
    if key_type.name == "float":
        return hash_ints(column.to_numpy(zero_copy_only=False).view(np.int32), seeds)
    if key_type.name == "double":
        return hash_longs(column.to_numpy(zero_copy_only=False).view(np.int64), seeds)
    if key_type.name in ("string", "binary"):
        return hash_byte_strings(column, seeds)
    if column.type.precision <= LONG_DIGITS:
        return hash_longs(_low_halves(column), seeds)
    pairs = zip(column.to_pylist(), seeds.tolist(), strict=True)
    return np.array([key_type.hashed(value, seed) for value, seed in pairs], dtype=np.uint64)


def _numbers(column: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_date(column.type):
        column = column.view(pa.int32())
    elif pa.types.is_timestamp(column.type):
        column = column.view(pa.int64())
    return column.to_numpy(zero_copy_only=False)


def _low_halves(column: Any) -> Any:
    import numpy as np

    return np.frombuffer(column.buffers()[1], dtype=np.int64)[column.offset * 2 : (column.offset + len(column)) * 2 : 2]


def _without_negative_zero(column: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    nan = pa.scalar(float("nan"), type=column.type)
    return pc.if_else(pc.is_nan(column), nan, pc.add(column, pa.scalar(0.0, type=column.type)))
