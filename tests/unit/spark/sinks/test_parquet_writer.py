"""What one Spark task writes, in which files, and what it leaves when it fails."""

from __future__ import annotations

import datetime
import decimal

import fsspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from airflow_provider_statecheck.exceptions import StorageError, UnsupportedStateError
from airflow_provider_statecheck.spark.sinks.read_committed import committed_files
from airflow_provider_statecheck.spark.sinks.sink import Committable
from airflow_provider_statecheck.spark.sinks.target_files import TargetFiles
from airflow_provider_statecheck.spark.tables import data_files
from airflow_provider_statecheck.testing.sink_contract import SCHEMA, table_of
from tests.unit.spark.sinks.attempts import Attempt, hidden_in

DAYS = pa.schema([("key", pa.int64()), ("name", pa.string()), ("day", pa.date32())])


def table_in(path, partitions=None):
    filesystem, root = fsspec.url_to_fs(path)
    partitioning = ds.partitioning(partitions, flavor="hive")
    return ds.dataset(root, filesystem=filesystem, format="parquet", partitioning=partitioning).to_table()


def committed(path, table, **settings):
    attempt = Attempt(path, 1, schema=table.schema, **settings).open()
    writer = attempt.task(schema=table.schema)
    writer.write(table)
    attempt.commit(1, writer.prepare_commit())
    return attempt


def test_any_type_comes_back_equal(path):
    table = pa.table(
        {
            "a": pa.array([1, None], pa.int8()),
            "b": pa.array([decimal.Decimal("1.50"), None], pa.decimal128(10, 2)),
            "c": pa.array([datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), None], pa.timestamp("us", tz="UTC")),
            "d": pa.array([[1, None], None], pa.list_(pa.int32())),
            "e": pa.array([[("k", 1.5)], None], pa.map_(pa.string(), pa.float64())),
            "f": pa.array([{"x": b"1"}, None], pa.struct([("x", pa.binary())])),
            "g": pa.nulls(2),
        }
    )
    committed(path, table)
    assert table_in(path).equals(table)


def test_columns_may_come_in_any_order(path):
    attempt = Attempt(path, 1).open()
    writer = attempt.task()
    writer.write(table_of([1]).select(["name", "key"]))
    attempt.commit(1, writer.prepare_commit())
    assert table_in(path).equals(table_of([1]))


@pytest.mark.parametrize("compression", ["zstd", "snappy", "gzip", "none"])
def test_columns_are_compressed_as_told(path, compression):
    committed(path, table_of([1]), compression=compression)
    (file,) = committed_files(path)
    with fsspec.open(file.uri) as opened:
        found = pq.read_metadata(opened).row_group(0).column(0).compression
    assert found == {"none": "UNCOMPRESSED"}.get(compression, compression.upper())


def test_a_full_file_is_followed_by_another(path):
    attempt = Attempt(path, 1, max_file_bytes=1).open()
    writer = attempt.task()
    writer.write(table_of([1]))
    writer.write(table_of([2]))
    attempt.commit(1, writer.prepare_commit())
    assert [file.rows for file in committed_files(path)] == [1, 1]


def test_rows_wait_for_each_other_in_row_groups_of_bounded_size(path, monkeypatch):
    monkeypatch.setattr(data_files, "ROW_GROUP_BYTES", table_of([1, 2]).nbytes)
    attempt = Attempt(path, 1).open()
    writer = attempt.task()
    for key in range(5):
        writer.write(table_of([key]))
    attempt.commit(1, writer.prepare_commit())
    (file,) = committed_files(path)
    with fsspec.open(file.uri) as opened:
        metadata = pq.read_metadata(opened)
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [2, 2, 1]


def test_tables_without_rows_make_no_file(path):
    attempt = Attempt(path, 1).open()
    writer = attempt.task()
    writer.write(table_of([]))
    (found,) = writer.prepare_commit()
    assert Committable.from_json(found).files == ()
    assert hidden_in(path, "staging") == []


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


def test_few_files_are_open_at_once(path, monkeypatch):
    monkeypatch.setattr(data_files, "_MAX_OPEN_FILES", 2)
    table = pa.table({"key": [1, 2, 3], "name": ["a", "b", "c"]}, SCHEMA)
    attempt = Attempt(path, 1, partition_by=["name"]).open()
    writer = attempt.task()
    writer.write(table)
    writer.write(table)
    attempt.commit(1, writer.prepare_commit())
    assert sorted(table_in(path).column("key").to_pylist()) == [1, 1, 2, 2, 3, 3]


def test_memory_of_all_open_files_is_bounded(path, monkeypatch):
    monkeypatch.setattr(data_files, "ROW_GROUP_BYTES", 200)
    flushed = []
    monkeypatch.setattr(data_files.OutputFile, "flush", lambda file: flushed.append(file))
    writer = Attempt(path, 1, partition_by=["name"]).open().task()
    table = pa.table({"key": list(range(40)), "name": [str(i) for i in range(40)]}, SCHEMA)
    writer.write(table)
    assert flushed
    writer.abort()


@pytest.mark.parametrize("kind", [pa.float64(), pa.binary(), pa.timestamp("us"), pa.list_(pa.int64())])
def test_partitions_of_other_types_are_refused(path, kind):
    schema = pa.schema([("key", pa.int64()), ("part", kind)])
    with pytest.raises(UnsupportedStateError, match=r"integers, strings, dates or booleans, found 'part'"):
        Attempt(path, 1, schema=schema, partition_by=["part"]).open()


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


def test_giving_up_deletes_half_files_too(path):
    writer = Attempt(path, 1).open().task()
    writer.write(table_of([1]))
    writer.abort()
    writer.abort()
    assert hidden_in(path, "staging") == []


def test_giving_up_raises_nothing_where_the_storage_fails(path, monkeypatch, caplog):
    writer = Attempt(path, 1, max_file_bytes=1).open().task()
    writer.write(table_of([1]))
    monkeypatch.setattr(TargetFiles, "delete", _failing)
    writer.abort()
    assert "Orphan file" in caplog.text
    assert "was not deleted" in caplog.text


def test_half_a_file_is_never_sent(memory_path, monkeypatch):
    sent = []
    monkeypatch.setattr(TargetFiles, "upload", lambda _, local, name: sent.append(pq.read_table(local).num_rows))
    writer = Attempt(memory_path, 1).open().task()
    writer.write(table_of([1, 2]))
    assert sent == []
    writer.prepare_commit()
    assert sent == [2]


def _failing(*_):
    raise StorageError("planted")
