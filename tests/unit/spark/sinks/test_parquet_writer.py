"""What one Spark task writes, in which files, and what it leaves when it fails."""

from __future__ import annotations

import datetime

import fsspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.spark.sinks.parquet_sink import committed_files
from airflow_provider_statecheck.testing.sink_contract import SCHEMA, table_of
from tests.unit.spark.sinks.attempts import Attempt, hidden_in

DAYS = pa.schema([("key", pa.int64()), ("name", pa.string()), ("day", pa.date32())])


def table_in(path, partitions=None):
    filesystem, root = fsspec.url_to_fs(path)
    partitioning = ds.partitioning(partitions, flavor="hive")
    return ds.dataset(root, filesystem=filesystem, format="parquet", partitioning=partitioning).to_table()


def committed(path, table, **settings):
    attempt = Attempt(path, 1, schema=table.schema, **settings).open()
    attempt.commit(1, attempt.write_table(table))


@pytest.mark.parametrize("compression", ["zstd", "snappy", "gzip", "none"])
def test_columns_are_compressed_as_told(path, compression):
    committed(path, table_of([1]), compression=compression)
    (file,) = committed_files(path)
    with fsspec.open(file.uri) as opened:
        found = pq.read_metadata(opened).row_group(0).column(0).compression
    assert found == {"none": "UNCOMPRESSED"}.get(compression, compression.upper())


# Partitions


def test_rows_lie_in_the_directories_of_their_values(path):
    days = [datetime.date(2024, 1, 1), datetime.date(2024, 1, 2)]
    table = pa.table({"key": [1, 2, 3], "name": ["a", "b", "c"], "day": [days[0], days[1], days[0]]}, DAYS)
    committed(path, table, partition_by=["day"])
    directories = [file.uri.removeprefix(f"{path}/").rpartition("/")[0] for file in committed_files(path)]
    assert directories == ["day=2024-01-01", "day=2024-01-02"]
    assert [file.rows for file in committed_files(path)] == [2, 1]
    assert sorted(table_in(path).column("key").to_pylist()) == [1, 2, 3]


@pytest.mark.parametrize("value", ["a/b", "..", "a=b", "50%", "*?[]{}", "ü\n", "x y", None, "__x"])
def test_any_text_is_a_directory_of_one_level_and_read_back(path, value):
    table = pa.table({"key": [1], "name": [value]}, SCHEMA)
    committed(path, table, partition_by=["name"])
    (file,) = committed_files(path)
    assert file.uri.removeprefix(f"{path}/").count("/") == 1
    found = table_in(path, pa.schema([("name", pa.string())]))
    assert found.select(["key", "name"]).to_pylist() == [{"key": 1, "name": value}]


def test_partitions_of_whole_numbers_and_booleans_are_read_back(path):
    table = pa.table({"key": [1, 2], "number": [-7, 8], "flag": [True, False]})
    committed(path, table, partition_by=["number", "flag"])
    found = sorted(file.uri.removeprefix(f"{path}/").rpartition("/")[0] for file in committed_files(path))
    assert found == ["number=-7/flag=true", "number=8/flag=false"]


def test_partitions_need_a_column_that_is_there_and_one_beside_it(path):
    with pytest.raises(UnsupportedStateError, match="column 'day' of partition_by in the output, found key, name"):
        Attempt(path, 1, partition_by=["day"]).open()
    with pytest.raises(UnsupportedStateError, match="a column in addition to those of partition_by"):
        Attempt(path, 1, partition_by=["name", "key"]).open()


# Failing


def test_a_task_that_gives_up_deletes_what_it_wrote(path):
    writer = Attempt(path, 1, max_file_bytes=1).open().task()
    writer.write(table_of([1]))
    assert len(hidden_in(path, "staging")) == 1
    writer.write(table_of([2]))
    writer.abort()
    assert hidden_in(path, "staging") == []
