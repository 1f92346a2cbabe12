"""The files that a Delta sink writes, and what the log of the table says of them."""

from __future__ import annotations

import datetime
import decimal
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_statecheck.spark.sinks.delta.delta_writer import statistics_of
from tests.unit.spark.sinks.attempts import SCHEMA, table_of
from tests.unit.spark.sinks.delta.attempts import DeltaAttempt, keys_of, log_of, rows_of, table_at

DAYS = pa.schema([*SCHEMA, ("day", pa.date32())])


def committed(path, table, **settings):
    attempt = DeltaAttempt(path, 1, schema=table.schema, **settings).open()
    writer = attempt.task(schema=table.schema)
    writer.write(table)
    attempt.commit(1, writer.prepare_commit())
    return attempt


def adds_of(path, version=1):
    return [action["add"] for action in log_of(path, version) if "add" in action]


def test_any_type_comes_back_equal(path):
    moment = datetime.datetime(2024, 1, 1, 12, 30, 15, 123456, tzinfo=datetime.UTC)
    table = pa.table(
        {
            "a": pa.array([1, None], pa.int8()),
            "b": pa.array([decimal.Decimal("1.50"), None], pa.decimal128(10, 2)),
            "c": pa.array([moment, None], pa.timestamp("us", tz="UTC")),
            "d": pa.array([moment.replace(tzinfo=None), None], pa.timestamp("us")),
            "e": pa.array([[1, None], None], pa.list_(pa.int32())),
            "f": pa.array([[("k", 1.5)], None], pa.map_(pa.string(), pa.float64())),
            "g": pa.array([{"x": b"1"}, None], pa.struct([("x", pa.binary())])),
            "h": pa.array([datetime.date(2024, 1, 1), None]),
            "i": pa.array([True, None]),
            "j": pa.array([float("nan"), None]),
        }
    )
    committed(path, table)
    found = rows_of(path)
    assert str(found.to_pylist()) == str(table.to_pylist())


def test_types_that_arrow_alone_has_become_those_of_delta(path):
    table = pa.table(
        {
            "key": pa.array([1]),
            "a": pa.array(["x"], pa.large_string()),
            "b": pa.array(["x"]).dictionary_encode(),
            "c": pa.array([b"x"], pa.large_binary()),
            "d": pa.array([0], pa.timestamp("ms", "UTC")),
        }
    )
    committed(path, table)
    assert [str(kind) for kind in rows_of(path).schema.types][1:4] == ["string", "string", "binary"]
    assert keys_of(path) == [1]


def test_columns_may_come_in_any_order(path):
    attempt = DeltaAttempt(path, 1).open()
    writer = attempt.task()
    writer.write(table_of([1]).select(["name", "key"]))
    attempt.commit(1, writer.prepare_commit())
    assert rows_of(path).to_pylist() == [{"key": 1, "name": "name 1"}]


def test_the_names_of_files_tell_whose_they_are(path):
    attempt = committed(
        path,
        table_of([1]),
    )
    (add,) = adds_of(path)
    assert add["path"].startswith(f"statecheck-{attempt.files.lineage}/g1-e1-0-")


def test_a_full_file_is_followed_by_another(path):
    attempt = DeltaAttempt(path, 1, max_file_bytes=1).open()
    writer = attempt.task()
    writer.write(table_of([1]))
    writer.write(table_of([2]))
    attempt.commit(1, writer.prepare_commit())
    assert len(adds_of(path)) == 2
    assert keys_of(path) == [1, 2]


# Partitions


def test_rows_lie_in_partitions_by_the_values_of_their_columns(path):
    days = [datetime.date(2024, 1, 1), datetime.date(2024, 1, 2), None]
    table = pa.table({"key": [1, 2, 3], "name": ["a", "b", "c"], "day": days}, DAYS)
    committed(path, table, partition_by=["day"])
    values = sorted((add["partitionValues"]["day"] for add in adds_of(path)), key=str)
    assert values == ["2024-01-01", "2024-01-02", None]
    assert table_at(path).metadata().partition_columns == ["day"]
    assert rows_of(path).sort_by("key").equals(table)
    (file,) = [a["path"] for a in adds_of(path) if a["partitionValues"]["day"] == "2024-01-01"]
    assert "day" not in pq.read_schema(f"{path.removeprefix('file://')}/{file}").names


@pytest.mark.parametrize("value", ["a/b", "..", "a=b", "50%", "*?[]{}", "ü\n", "x y", "%2F", "001", None])
def test_any_text_is_a_partition_and_read_back(path, value):
    table = pa.table({"key": [1], "name": [value]}, SCHEMA)
    committed(path, table, partition_by=["name"])
    assert rows_of(path).to_pylist() == [{"key": 1, "name": value}]


def test_the_empty_text_is_null_in_a_partition(path):
    committed(path, pa.table({"key": [1], "name": [""]}, SCHEMA), partition_by=["name"])
    assert rows_of(path).to_pylist() == [{"key": 1, "name": None}]


def test_partitions_of_whole_numbers_and_booleans_are_read_back(path):
    table = pa.table({"key": [1, 2], "number": [-7, 8], "flag": [True, False]})
    committed(path, table, partition_by=["number", "flag"])
    assert rows_of(path).sort_by("key").equals(table)


def test_replaced_files_of_partitions_go_with_their_values(path):
    table = pa.table({"key": [1], "name": ["a"]}, SCHEMA)
    committed(path, table, partition_by=["name"])
    DeltaAttempt(path, 2, generation=2, partition_by=["name"]).open().add(1, 2)
    (removed,) = [action["remove"] for action in log_of(path, 3) if "remove" in action]
    assert removed["partitionValues"] == {"name": "a"}
    assert removed["size"] > 0
    assert keys_of(path) == [2]


# Statistics


def test_the_log_says_which_values_a_file_has(path):
    table = pa.table(
        {
            "key": pa.array([3, None, -1], pa.int64()),
            "name": ["b", "a", None],
            "day": [datetime.date(2024, 1, 2), datetime.date(2024, 1, 1), None],
        }
    )
    committed(path, table)
    (add,) = adds_of(path)
    assert json.loads(add["stats"]) == {
        "numRecords": 3,
        "minValues": {"key": -1, "name": "a", "day": "2024-01-01"},
        "maxValues": {"key": 3, "name": "b", "day": "2024-01-02"},
        "nullCount": {"key": 1, "name": 1, "day": 1},
    }


def stats(table, tmp_path, **options):
    pq.write_table(table, tmp_path / "f.parquet", **options)
    return json.loads(statistics_of(pq.read_metadata(tmp_path / "f.parquet")))


def test_the_bound_of_a_long_text_is_no_less_than_the_text(tmp_path):
    found = stats(pa.table({"a": ["x" * 40, "y" * 40]}), tmp_path)
    assert found["minValues"] == {"a": "x" * 32}
    assert found["maxValues"] == {}


def test_no_bound_is_given_where_readers_compare_in_different_ways(tmp_path):
    now = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    table = pa.table({"a": [1.5], "b": [True], "c": [now], "d": [b"x"], "e": [decimal.Decimal("1.5")], "f": [[1]]})
    found = stats(table, tmp_path)
    assert found["minValues"] == found["maxValues"] == {}
    assert found["nullCount"] == dict.fromkeys("abcde", 0)


def test_bounds_are_of_all_row_groups(tmp_path):
    found = stats(pa.table({"a": [5, None, 1, 9]}), tmp_path, row_group_size=1)
    assert (found["minValues"], found["maxValues"], found["nullCount"]) == ({"a": 1}, {"a": 9}, {"a": 1})


def test_a_file_without_statistics_has_its_rows_counted(tmp_path):
    assert stats(pa.table({"a": [5]}), tmp_path, write_statistics=False) == {
        "numRecords": 1,
        "minValues": {},
        "maxValues": {},
        "nullCount": {},
    }


def test_a_reader_that_looks_for_a_value_finds_it(path):
    attempt = DeltaAttempt(path, 1).open()
    for checkpoint in range(1, 4):
        attempt.add(checkpoint, checkpoint)
    found = table_at(path).to_pyarrow_table(filters=[("key", "=", 2)])
    assert found.to_pylist() == [{"key": 2, "name": "name 2"}]


# Failing


def test_a_task_that_gives_up_deletes_what_it_wrote(path):
    attempt = DeltaAttempt(path, 1, max_file_bytes=1).open()
    writer = attempt.task()
    writer.write(table_of([1]))
    directory = f"statecheck-{attempt.files.lineage}"
    assert len(attempt.files.list_files(directory)) == 1
    writer.abort()
    assert attempt.files.list_files(directory) == {}


def test_tasks_need_no_deltalake(path, monkeypatch):
    attempt = DeltaAttempt(path, 1).open()
    monkeypatch.setitem(__import__("sys").modules, "deltalake", None)
    written = attempt.write(1)
    monkeypatch.undo()
    attempt.commit(1, written)
    assert keys_of(path) == [1]
