"""Rows that tasks read in Python, and how files are divided among them."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.exceptions import SourceChangedError, StorageError
from airflow_provider_statecheck.spark.tables.schemas import (
    TaskReader,
    concealed_failures,
    consecutive,
    merged_schema,
    pack_tasks,
    read_tasks,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Echo(TaskReader):
    def read_task(self, task):
        yield from task


def test_a_spark_task_reads_the_tasks_of_its_numbers():
    reader = Echo(schema=None, packed_tasks=pack_tasks([["a"], ["b", "c"], []]))

    assert list(read_tasks(reader, [pa.record_batch({"id": [1, 2]}), pa.record_batch({"id": [0]})])) == ["b", "c", "a"]
    assert "packed" not in repr(reader)


@given(st.lists(st.integers(0, 30), max_size=12), st.integers(0, 40))
def test_consecutive_elements_are_divided_without_gaps_and_within_the_limit(sizes, limit):
    found = list(consecutive(sizes, limit))

    assert [position for each in found for position in each] == list(range(len(sizes)))
    assert all(len(each) == 1 or sum(sizes[each.start : each.stop]) <= limit for each in found)


def test_errors_of_a_client_are_told_without_credentials():
    with (
        pytest.raises(StorageError, match=r"^It failed: RuntimeError") as raised,
        concealed_failures("It failed", {"secret": "hush-hush"}),
    ):
        raise RuntimeError("of hush-hush")
    assert "hush-hush" not in str(raised.value)
    assert raised.value.__suppress_context__


def test_own_errors_stay_as_they_are():
    with pytest.raises(SourceChangedError, match="ours"), concealed_failures("It failed", {}):
        raise SourceChangedError("ours")


def test_schemas_are_merged_by_the_names_of_columns():
    first = pa.schema([("a", pa.int64()), ("b", pa.string())])
    second = pa.schema([("c", pa.date32()), ("b", pa.large_string())])

    assert merged_schema([first, second]) == pa.schema(
        [("a", pa.int64()), ("b", pa.large_string()), ("c", pa.date32())]
    )
