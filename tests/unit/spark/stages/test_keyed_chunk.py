"""Where each key begins in a table."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.spark.stages.executor.elements import KEY_GROUP, KeyedChunk
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer

NAN = float("nan")


def chunk(keys: list[Any], groups: list[int], type_: Any) -> KeyedChunk:
    table = pa.table({"key": pa.array(keys, type_), KEY_GROUP: pa.array(groups, pa.int32())})
    return KeyedChunk.of(table, KeySerializer((KeyField("key", type_),)))


def test_each_key_begins_once() -> None:
    found = chunk(["a", "a", "b", "c", "c"], [0, 0, 0, 1, 1], pa.string())
    assert (found.starts, found.keys.columns[0].to_pylist()) == ([0, 2, 3, 5], ["a", "b", "c"])


def test_rows_of_one_key_in_one_table_are_no_two_keys_because_of_nan() -> None:
    assert chunk([-0.0, 0.0, NAN, NAN, NAN], [0, 0, 1, 1, 1], pa.float64()).starts == [0, 2, 5]


def test_single_row_is_one_key() -> None:
    assert chunk([NAN], [0], pa.float64()).starts == [0, 1]


def test_null_is_no_key() -> None:
    with pytest.raises(UnsupportedStateError, match="'key'"):
        chunk([1, None], [0, 0], pa.int64())
