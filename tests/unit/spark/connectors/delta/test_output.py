"""Output of a Delta sink: data files with their entries in the log of the table, and upserts."""

from __future__ import annotations

import datetime
import decimal
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider_statecheck.exceptions import CorruptStateError, EnvironmentNotReadyError, UnsupportedStateError
from airflow_provider_statecheck.testing.sink_contract import SCHEMA, table_of
from tests.unit.spark.connectors.delta.attempts import (
    DeltaAttempt,
    added_in,
    keys_of,
    log_of,
    orphans_in,
    rows_of,
    table_at,
)

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


# Upserts


def upserting(path, epoch, **more):
    return DeltaAttempt(path, epoch, upsert_by=["key"], **more)


def names_in(path):
    return {row["key"]: row["name"] for row in rows_of(path).to_pylist()}


def test_rows_of_other_writers_are_updated_and_columns_that_the_output_lacks_are_kept(path):
    write_deltalake(path, pa.table({"key": [1, 2], "name": ["x", "y"], "price": [1.5, 2.5]}))
    upserting(path, 1, merge_schema=True).open().add(1, 2, 3)
    rows = rows_of(path).sort_by("key").select(["key", "name", "price"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [(1, "x", 1.5), (2, "name 2", 2.5), (3, "name 3", None)]


@pytest.mark.parametrize("start", [{"restored": 1}, {"generation": 2}])
@pytest.mark.parametrize("adds", [True, False])
def test_replaced_rows_are_deleted_in_the_version_of_the_new_ones(path, start, adds):
    first = upserting(path, 1).open()
    first.add(1, 1, 2)
    first.add(2, 2, 3, 4)
    second = upserting(path, 2, **start).open()
    version = table_at(path).version()
    if adds:
        second.add(3, 4, 5, name="new")
    second.finish()
    kept = {1: "name 1", 2: "name 2"} if "restored" in start else {}
    assert names_in(path) == {**kept, **({4: "new 4", 5: "new 5"} if adds else {})}
    assert table_at(path).version() == version + 1
    assert orphans_in(path) == []


def test_retraction_that_deletes_no_row_is_recorded(path):
    first = upserting(path, 1).open()
    first.add(1, 1)
    table_at(path).delete()
    upserting(path, 2, generation=2).open().finish()
    (told,) = [action["commitInfo"]["statecheck"] for action in log_of(path) if "commitInfo" in action]
    assert told["attempt"] == "retracts"
    upserting(path, 3, generation=2).open().add(2, 2)
    assert keys_of(path) == [2]


def test_fresh_start_replaces_the_rows_of_a_lost_log(path, tmp_path):
    upserting(path, 1).open().add(1, 1)
    (tmp_path / "table" / "_statecheck").rename(tmp_path / "away")
    with pytest.raises(CorruptStateError, match="it was deleted"):
        upserting(path, 2, restored=1).open()
    upserting(path, 2, generation=2).open().add(2, 2)
    assert keys_of(path) == [2]


def test_concurrent_version_is_not_overwritten(path, monkeypatch):
    first = upserting(path, 1).open()
    first.add(1, 1)
    merge = DeltaTable.merge

    def behind_another(*args, **more):
        monkeypatch.undo()
        upserting(path, 1, job="other").open().add(1, 1, 2, name="theirs")
        return merge(*args, **more)

    monkeypatch.setattr(DeltaTable, "merge", behind_another)
    first.add(2, 3)
    assert names_in(path) == {1: "theirs 1", 2: "theirs 2", 3: "name 3"}


@pytest.mark.parametrize("partition_by", [[], ["name"]])
def test_names_and_values_of_keys_may_be_any(path, partition_by):
    schema = pa.schema(
        [("Key Id", pa.string()), ("a.b", pa.date32()), ("select", pa.decimal128(10, 2)), ("name", pa.string())]
    )
    keys = ["Key Id", "a.b", "select"]
    days = pa.array([0, 1], pa.int32())
    rows = pa.table({"Key Id": ["'x'", "ü"], "a.b": days, "select": ["1.50", "2"], "name": ["a", "b"]})
    first = DeltaAttempt(path, 1, upsert_by=keys, schema=schema, partition_by=partition_by).open()
    first.commit(1, first.write_table(rows.cast(schema)))
    first.commit(2, first.write_table(rows.slice(1).set_column(3, "name", [["c"]]).cast(schema)))
    assert sorted(rows_of(path).column("name").to_pylist()) == ["a", "c"]


@pytest.mark.parametrize("kind", [pa.decimal128(18, 9), pa.decimal128(38, 0)])
def test_decimal_keys_with_more_digits_than_statistics_are_found(path, kind):
    keys = [decimal.Decimal(2**53 * 10 + n).scaleb(-kind.scale) for n in range(3)]
    schema = pa.schema([("key", kind), ("name", pa.string())])
    first = DeltaAttempt(path, 1, upsert_by=["key"], schema=schema).open()
    for checkpoint_id, key in enumerate([*keys, keys[0]], 1):
        first.commit(checkpoint_id, first.write_table(pa.table({"key": [key], "name": [str(checkpoint_id)]}, schema)))
    assert names_in(path) == dict(zip(keys, "423", strict=True))
    assert len(keys_of(path)) == len(keys)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (SCHEMA.remove(0), "no key among name"),
        (SCHEMA.append(pa.field("_statecheck_lineage", pa.string())), "'_statecheck_lineage'"),
        (pa.schema([("key", pa.list_(pa.int64())), ("name", pa.string())]), "neither nested nor floating-point"),
        (pa.schema([("key", pa.float64()), ("name", pa.string())]), "neither nested nor floating-point"),
    ],
)
def test_output_that_cannot_be_upserted_is_refused_before_any_work(path, schema, message):
    with pytest.raises(UnsupportedStateError, match=message):
        upserting(path, 1, schema=schema).open()


def test_tables_that_cannot_be_upserted_are_refused_before_any_work(path, tmp_path):
    DeltaTable.create(path, SCHEMA)
    with pytest.raises(UnsupportedStateError, match="column '_statecheck_lineage' is new"):
        upserting(path, 1).open()
    other = f"file://{tmp_path}/other"
    DeltaTable.create(other, SCHEMA, configuration={"delta.appendOnly": "true"})
    with pytest.raises(EnvironmentNotReadyError, match="append-only"):
        upserting(other, 1, merge_schema=True).open()


def test_rows_of_the_other_kind_of_commit_cannot_be_replaced(path):
    DeltaAttempt(path, 1).open().add(1, 1)
    second = upserting(path, 2, restored=1, merge_schema=True).open()
    second.add(2, 2)
    with pytest.raises(EnvironmentNotReadyError, match=r"1 file\(s\) that the sink appended without upsert_by"):
        upserting(path, 3, generation=2).open()
    with pytest.raises(EnvironmentNotReadyError, match="has upserted it; set upsert_by as before"):
        DeltaAttempt(path, 3, restored=1).open()
    upserting(path, 4, restored=1, restored_epoch=1).open().add(3, 3)
    assert keys_of(path) == [1, 3]


def test_all_rows_of_a_key_are_updated(path):
    first = upserting(path, 1).open()
    first.add(1, 1)
    none = {
        "_statecheck_lineage": pa.array([None], pa.string()),
        "_statecheck_checkpoint": pa.array([None], pa.int64()),
    }
    write_deltalake(path, pa.table({"key": [1], "name": ["x"], **none}), mode="append")
    first.add(2, 1, name="new")
    assert [row["name"] for row in rows_of(path).to_pylist()] == ["new 1", "new 1"]


def test_upserted_rows_can_be_replaced_after_optimize(path):
    first = upserting(path, 1).open()
    first.add(1, 1)
    first.add(2, 2)
    table_at(path).optimize.compact()
    upserting(path, 2, restored=1).open().add(3, 3)
    assert keys_of(path) == [1, 3]
