"""Columns of Delta tables: their types, the bounds of their values, and options of the storage."""

from __future__ import annotations

import datetime
import decimal
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.spark.tables.delta import library_options
from airflow_provider_statecheck.spark.tables.delta_files import file_schema, statistics_of


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
