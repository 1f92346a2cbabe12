"""Data files of a Delta sink, and their entries in the log of the table."""

from __future__ import annotations

import datetime
import decimal
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_statecheck.testing.sink_contract import SCHEMA, table_of
from tests.unit.spark.sinks.delta.attempts import DeltaAttempt, added_in, keys_of, log_of, rows_of, table_at

DAYS = pa.schema([*SCHEMA, ("day", pa.date32())])


def committed(path, table, **settings):
    attempt = DeltaAttempt(path, 1, schema=table.schema, **settings).open()
    attempt.commit(1, attempt.write_table(table))
    return attempt


@pytest.mark.parametrize("settings", [{}, {"upsert_by": ["a"]}])
def test_values_of_any_type_are_read_back_equal(path, settings):
    moment = datetime.datetime(2024, 1, 1, 12, 30, 15, 123456, tzinfo=datetime.UTC)
    table = pa.table(
        {
            "a": pa.array([1, 2], pa.int8()),
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
    attempt = committed(path, table, **settings)
    if settings:
        attempt.commit(2, attempt.write_table(table))
    found = rows_of(path).select(table.column_names).sort_by("a")
    assert str(found.to_pylist()) == str(table.to_pylist())


def test_types_that_only_arrow_has_become_those_of_delta(path):
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


def test_columns_may_have_any_order_and_files_any_number(path):
    attempt = DeltaAttempt(path, 1, max_file_bytes=1).open()
    writer = attempt.task()
    writer.write(table_of([1]).select(["name", "key"]))
    writer.write(table_of([2]))
    attempt.commit(1, writer.prepare_commit())
    assert rows_of(path).sort_by("key").to_pylist() == [{"key": n, "name": f"name {n}"} for n in (1, 2)]
    prefix = f"statecheck-{attempt.context.lineage}/g1-e1-0-"
    assert [add["path"].startswith(prefix) for add in added_in(path)] == [True, True]
    found = table_at(path).to_pyarrow_table(filters=[("key", "=", 2)])
    assert found.to_pylist() == [{"key": 2, "name": "name 2"}]


@pytest.mark.parametrize("settings", [{}, {"upsert_by": ["key"]}])
def test_tasks_need_no_deltalake(path, monkeypatch, settings):
    attempt = DeltaAttempt(path, 1, **settings).open()
    monkeypatch.setitem(__import__("sys").modules, "deltalake", None)
    written = attempt.write(1)
    monkeypatch.undo()
    attempt.commit(1, written)
    assert keys_of(path) == [1]


# Partitions


def test_files_are_in_partitions_and_leave_them_with_their_values(path):
    days = [datetime.date(2024, 1, 1), datetime.date(2024, 1, 2), None]
    table = pa.table({"key": [1, 2, 3], "name": ["a", "b", "c"], "day": days}, DAYS)
    committed(path, table, partition_by=["day"])
    assert table_at(path).metadata().partition_columns == ["day"]
    assert rows_of(path).sort_by("key").equals(table)
    files = {add["partitionValues"]["day"]: add["path"] for add in added_in(path)}
    assert set(files) == {"2024-01-01", "2024-01-02", None}
    assert "day" not in pq.read_schema(f"{path.removeprefix('file://')}/{files['2024-01-01']}").names

    second = DeltaAttempt(path, 2, generation=2, schema=DAYS, partition_by=["day"]).open()
    second.commit(2, second.write_table(table.slice(2)))
    removed = [action["remove"] for action in log_of(path) if "remove" in action]
    assert {each["path"]: each["partitionValues"]["day"] for each in removed} == {
        name: day for day, name in files.items()
    }
    assert all(each["size"] > 0 for each in removed)
    assert keys_of(path) == [3]


@pytest.mark.parametrize("value", ["a/b", "..", "a=b", "50%", "*?[]{}", "ü\n", "x y", "%2F", "001", "", None])
def test_any_text_is_a_partition_and_the_empty_one_is_null(path, value):
    committed(path, pa.table({"key": [1], "name": [value]}, SCHEMA), partition_by=["name"])
    assert rows_of(path).to_pylist() == [{"key": 1, "name": value or None}]


def test_partitions_of_whole_numbers_and_booleans_are_read_back(path):
    table = pa.table({"key": [1, 2], "number": [-7, 8], "flag": [True, False]})
    committed(path, table, partition_by=["number", "flag"])
    assert rows_of(path).sort_by("key").equals(table)


# Statistics


def test_log_has_the_bounds_and_the_nulls_of_a_file(path):
    days = [datetime.date(2024, 1, 2), datetime.date(2024, 1, 1), None]
    committed(path, pa.table({"key": pa.array([3, None, -1], pa.int64()), "name": ["b", "a", None], "day": days}))
    (add,) = added_in(path)
    assert json.loads(add["stats"]) == {
        "numRecords": 3,
        "minValues": {"key": -1, "name": "a", "day": "2024-01-01"},
        "maxValues": {"key": 3, "name": "b", "day": "2024-01-02"},
        "nullCount": {"key": 1, "name": 1, "day": 1},
    }
