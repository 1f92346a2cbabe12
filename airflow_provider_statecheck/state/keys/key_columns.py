"""Normal form, hashes and key groups of Arrow key columns."""

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
_BATCH_BYTES = 1 << 22
_HASHED_AS_INT = frozenset({"boolean", "tinyint", "smallint", "int", "date"})
_HASHED_AS_LONG = frozenset({"bigint", "timestamp", "timestamp_ntz"})


def normalized_column(name: str, data_type: Any, column: Any) -> Any:
    """
    Return a key column in normal form, in which keys are stored, compared and hashed.

    :param name: The name of the column, for errors.
    :param data_type: The expected Arrow type; the column may have another layout of it, such as ``large_string``.
    :raises InvalidConfigurationError: if the column contains a null.
    :raises UnsupportedStateError: if the column has another type, or a value has no normal form.
    """
    import pyarrow as pa

    key_type = key_type_of(data_type)
    if key_type_of(column.type).name != key_type.name:
        raise UnsupportedStateError(f"Expected the key column {name} to be a {key_type.name}, found {column.type}.")
    if column.null_count:
        raise InvalidConfigurationError(
            f"Expected a key in each row, found {column.null_count} rows without {name}; filter them out before key_by."
        )
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    try:
        cast = array.cast(key_type.arrow_type)
    except pa.ArrowInvalid as error:
        raise UnsupportedStateError(f"Expected the key column {name} to be a {key_type.name}: {error}.") from error
    return _without_negative_zero(cast) if pa.types.is_floating(cast.type) else cast


def key_groups(columns: Sequence[Any], max_parallelism: int) -> Any:
    """
    Return the key groups of keys as a numpy array of int32.

    :param columns: Arrow arrays of equal length, returned by :func:`normalized_column`.
    :raises UnsupportedStateError: if the type of a column cannot be part of a key.
    """
    import numpy as np

    hashed = np.full(len(columns[0]), SPARK_SEED, dtype=np.uint64)
    for column in columns:
        hashed = _hash_column(key_type_of(column.type), column, hashed)
    return (hashed.view(np.int64) % max_parallelism).astype(np.int32)


def _hash_column(key_type: KeyType, column: Any, seeds: Any) -> Any:
    import numpy as np

    if key_type.name in _HASHED_AS_INT:
        return hash_ints(_integers(column), seeds)
    if key_type.name in _HASHED_AS_LONG:
        return hash_longs(_integers(column), seeds)
    if key_type.name == "float":
        return hash_ints(column.to_numpy(zero_copy_only=False).view(np.int32), seeds)
    if key_type.name == "double":
        return hash_longs(column.to_numpy(zero_copy_only=False).view(np.int64), seeds)
    if key_type.name in ("string", "binary"):
        return hash_byte_strings(column, seeds)
    if column.type.precision <= LONG_DIGITS:
        return hash_longs(_unscaled_longs(column), seeds)
    pairs = zip(column.to_pylist(), seeds.tolist(), strict=True)
    return np.array([key_type.hashed(value, seed) for value, seed in pairs], dtype=np.uint64)


def _integers(column: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_date(column.type):
        column = column.view(pa.int32())
    elif pa.types.is_timestamp(column.type):
        column = column.view(pa.int64())
    return column.to_numpy(zero_copy_only=False)


def _unscaled_longs(column: Any) -> Any:
    import numpy as np

    return np.frombuffer(column.buffers()[1], dtype=np.int64)[column.offset * 2 : (column.offset + len(column)) * 2 : 2]


def _without_negative_zero(column: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    nan = pa.scalar(float("nan"), type=column.type)
    return pc.if_else(pc.is_nan(column), nan, pc.add(column, pa.scalar(0.0, type=column.type)))


def hash_ints(values: Any, seeds: Any) -> Any:
    """Return the hashes of numpy integers, which are hashed as 32-bit integers."""
    import numpy as np

    words = values.astype(np.int32).view(np.uint32).astype(np.uint64)
    return _avalanche(_mix_4_bytes(seeds + _uint64(PRIME_5 + 4), words))


def hash_longs(values: Any, seeds: Any) -> Any:
    """Return the hashes of numpy integers, which are hashed as 64-bit integers."""
    import numpy as np

    words = values.astype(np.int64).view(np.uint64)
    return _avalanche(_mix_8_bytes(seeds + _uint64(PRIME_5 + 8), words))


def hash_byte_strings(column: Any, seeds: Any) -> Any:
    """
    Return the hashes of an Arrow array of strings or bytes without nulls.

    Values of equal length are hashed together, as the rows of a matrix.
    """
    import numpy as np

    starts, lengths, data = _byte_ranges(column)
    hashed = np.empty(len(seeds), dtype=np.uint64)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        for batch in np.array_split(rows, len(rows) * length // _BATCH_BYTES + 1):
            hashed[batch] = _hash_matrix(data[starts[batch][:, None] + np.arange(length)], seeds[batch])
    return hashed


def _byte_ranges(column: Any) -> tuple[Any, Any, Any]:
    import numpy as np
    import pyarrow as pa

    if not len(column):
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint8)
    large = column.cast(pa.large_binary())
    _, offsets, data = large.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int64)[large.offset : large.offset + len(large) + 1]
    content = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, np.uint8)
    return bounds[:-1], np.diff(bounds), content


def _hash_matrix(matrix: Any, seeds: Any) -> Any:
    import numpy as np

    length = matrix.shape[1]
    words = np.ascontiguousarray(matrix[:, : length - length % 8]).view(np.uint64)
    striped = length // 32 * 4
    hashed = _hash_stripes(words[:, :striped], seeds) if striped else seeds + _uint64(PRIME_5)
    hashed = hashed + _uint64(length)
    for position in range(striped, length // 8):
        hashed = _mix_8_bytes(hashed, words[:, position])
    if length % 8 >= 4:
        half = np.ascontiguousarray(matrix[:, length // 8 * 8 : length // 8 * 8 + 4]).view(np.uint32)
        hashed = _mix_4_bytes(hashed, half[:, 0].astype(np.uint64))
    for position in range(length - length % 4, length):
        byte = matrix[:, position].astype(np.uint64)
        hashed = _rotate_left(hashed ^ byte * _uint64(PRIME_5), 11) * _uint64(PRIME_1)
    return _avalanche(hashed)


def _hash_stripes(words: Any, seeds: Any) -> Any:
    lanes = [seeds + _uint64(first) for first in (PRIME_1 + PRIME_2, PRIME_2, 0, -PRIME_1)]
    for position in range(words.shape[1]):
        lanes[position % 4] = _round(lanes[position % 4], words[:, position])
    hashed = sum(_rotate_left(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
    for lane in lanes:
        hashed = (hashed ^ _round(0 * lane, lane)) * _uint64(PRIME_1) + _uint64(PRIME_4)
    return hashed


def _round(lane: Any, word: Any) -> Any:
    return _rotate_left(lane + word * _uint64(PRIME_2), 31) * _uint64(PRIME_1)


def _mix_8_bytes(hashed: Any, word: Any) -> Any:
    return _rotate_left(hashed ^ _round(0 * word, word), 27) * _uint64(PRIME_1) + _uint64(PRIME_4)


def _mix_4_bytes(hashed: Any, word: Any) -> Any:
    return _rotate_left(hashed ^ word * _uint64(PRIME_1), 23) * _uint64(PRIME_2) + _uint64(PRIME_3)


def _rotate_left(value: Any, bits: int) -> Any:
    return value << _uint64(bits) | value >> _uint64(64 - bits)


def _avalanche(hashed: Any) -> Any:
    hashed = (hashed ^ hashed >> _uint64(33)) * _uint64(PRIME_2)
    hashed = (hashed ^ hashed >> _uint64(29)) * _uint64(PRIME_3)
    return hashed ^ hashed >> _uint64(32)


def _uint64(value: int) -> Any:
    import numpy as np

    return np.uint64(value & _MASK)
