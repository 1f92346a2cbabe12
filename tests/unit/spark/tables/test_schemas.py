"""Schemas of tables, and the types of Delta tables."""

from __future__ import annotations

import datetime
import decimal
import json
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.exceptions import SourceChangedError, StorageError, UnsupportedStateError
from airflow_provider_statecheck.spark.connectors.delta.table import library_options
from airflow_provider_statecheck.spark.connectors.delta.table_files import file_schema, statistics_of
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


@pytest.mark.parametrize(
    "kind",
    [
        pa.uint8(),
        pa.null(),
        pa.time64("us"),
        pa.duration("us"),
        pa.float16(),
        pa.timestamp("ns"),
        pa.timestamp("us", "Europe/Berlin"),
        pa.decimal256(50, 1),
        pa.list_(pa.uint8()),
    ],
)
def test_types_that_delta_lacks_are_refused(kind):
    with pytest.raises(UnsupportedStateError, match=r"type of Delta tables for the column 'a(\.element)?'"):
        file_schema(pa.schema([("a", kind)]))


def stats(table, tmp_path, **options):
    pq.write_table(table, tmp_path / "f.parquet", **options)
    return json.loads(statistics_of(pq.read_metadata(tmp_path / "f.parquet")))


def test_bounds_of_long_texts_exclude_no_value(tmp_path):
    found = stats(pa.table({"a": ["x" * 40, "y" * 40]}), tmp_path)
    assert (found["minValues"], found["maxValues"]) == ({"a": "x" * 32}, {})


def test_types_that_readers_compare_in_different_ways_have_no_bounds(tmp_path):
    now = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    table = pa.table({"a": [1.5], "b": [True], "c": [now], "d": [b"x"], "e": [decimal.Decimal("1.5")], "f": [[1]]})
    found = stats(table, tmp_path)
    assert found["minValues"] == found["maxValues"] == {}
    assert found["nullCount"] == dict.fromkeys("abcde", 0)


def test_bounds_are_those_of_all_row_groups(tmp_path):
    found = stats(pa.table({"a": [5, None, 1, 9]}), tmp_path, row_group_size=1)
    assert (found["minValues"], found["maxValues"], found["nullCount"]) == ({"a": 1}, {"a": 9}, {"a": 1})
    found = stats(pa.table({"a": [5]}), tmp_path, write_statistics=False)
    assert found == {"numRecords": 1, "minValues": {}, "maxValues": {}, "nullCount": {}}


def test_options_of_filesystems_are_translated_to_those_of_deltalake():
    s3 = {"key": "k", "secret": "s", "client_kwargs": {"endpoint_url": "http://h:1", "region_name": "r"}}
    assert library_options("s3://lake/t", s3) == {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_ENDPOINT_URL": "http://h:1",
        "AWS_REGION": "r",
        "AWS_ALLOW_HTTP": "true",
    }
    assert library_options("s3://lake/t", {"anon": True}) == {"AWS_SKIP_SIGNATURE": "true"}
    assert library_options("gs://lake/t", {"token": "/key.json"}) == {"GOOGLE_SERVICE_ACCOUNT": "/key.json"}
    assert library_options("abfss://c@a/t", {"account_key": "k"}) == {"AZURE_STORAGE_ACCOUNT_KEY": "k"}
    assert library_options("file:///t", {"auto_mkdir": True}) == {}
