"""Whole Arrow columns of keys: brought into form, and their key groups at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.state.keys.column_hash import hash_byte_strings, hash_ints, hash_longs
from airflow_provider_statecheck.state.keys.key_hash import SPARK_SEED
from airflow_provider_statecheck.state.keys.key_types import LONG_DIGITS, KeyType, key_type_of

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
