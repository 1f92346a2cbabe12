"""Upserts of a Delta sink: keys, marks, and retractions."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider_statecheck.exceptions import CorruptStateError, EnvironmentNotReadyError, UnsupportedStateError
from airflow_provider_statecheck.testing.sink_contract import SCHEMA
from tests.unit.spark.sinks.delta.attempts import DeltaAttempt, keys_of, log_of, orphans_in, rows_of, table_at


def attempt(path, epoch, **more):
    return DeltaAttempt(path, epoch, upsert_by=["key"], **more)


def names_in(path):
    return {row["key"]: row["name"] for row in rows_of(path).to_pylist()}


def test_rows_of_other_writers_are_updated_and_columns_that_the_output_lacks_are_kept(path):
    write_deltalake(path, pa.table({"key": [1, 2], "name": ["x", "y"], "price": [1.5, 2.5]}))
    attempt(path, 1, merge_schema=True).open().add(1, 2, 3)
    rows = rows_of(path).sort_by("key").select(["key", "name", "price"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [(1, "x", 1.5), (2, "name 2", 2.5), (3, "name 3", None)]


@pytest.mark.parametrize("start", [{"restored": 1}, {"generation": 2}])
@pytest.mark.parametrize("adds", [True, False])
def test_replaced_rows_are_deleted_in_the_version_of_the_new_ones(path, start, adds):
    first = attempt(path, 1).open()
    first.add(1, 1, 2)
    first.add(2, 2, 3, 4)
    second = attempt(path, 2, **start).open()
    version = table_at(path).version()
    if adds:
        second.add(3, 4, 5, name="new")
    second.finish()
    kept = {1: "name 1", 2: "name 2"} if "restored" in start else {}
    assert names_in(path) == {**kept, **({4: "new 4", 5: "new 5"} if adds else {})}
    assert table_at(path).version() == version + 1
    assert orphans_in(path) == []


def test_retraction_that_deletes_no_row_is_recorded(path):
    first = attempt(path, 1).open()
    first.add(1, 1)
    table_at(path).delete()
    attempt(path, 2, generation=2).open().finish()
    (told,) = [action["commitInfo"]["statecheck"] for action in log_of(path) if "commitInfo" in action]
    assert told["attempt"] == "retracts"
    attempt(path, 3, generation=2).open().add(2, 2)
    assert keys_of(path) == [2]


def test_fresh_start_replaces_the_rows_of_a_lost_log(path, tmp_path):
    attempt(path, 1).open().add(1, 1)
    (tmp_path / "table" / "_statecheck").rename(tmp_path / "away")
    with pytest.raises(CorruptStateError, match="it was deleted"):
        attempt(path, 2, restored=1).open()
    attempt(path, 2, generation=2).open().add(2, 2)
    assert keys_of(path) == [2]


def test_concurrent_version_is_not_overwritten(path, monkeypatch):
    first = attempt(path, 1).open()
    first.add(1, 1)
    merge = DeltaTable.merge

    def behind_another(*args, **more):
        monkeypatch.undo()
        attempt(path, 1, job="other").open().add(1, 1, 2, name="theirs")
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


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (SCHEMA.remove(0), "no key among name"),
        (SCHEMA.append(pa.field("_statecheck_lineage", pa.string())), "'_statecheck_lineage'"),
        (pa.schema([("key", pa.list_(pa.int64())), ("name", pa.string())]), "plain columns in upsert_by"),
    ],
)
def test_output_that_cannot_be_upserted_is_refused_before_any_work(path, schema, message):
    with pytest.raises(UnsupportedStateError, match=message):
        attempt(path, 1, schema=schema).open()


def test_tables_that_cannot_be_upserted_are_refused_before_any_work(path, tmp_path):
    DeltaTable.create(path, SCHEMA)
    with pytest.raises(UnsupportedStateError, match="column '_statecheck_lineage' is new"):
        attempt(path, 1).open()
    other = f"file://{tmp_path}/other"
    DeltaTable.create(other, SCHEMA, configuration={"delta.appendOnly": "true"})
    with pytest.raises(EnvironmentNotReadyError, match="append-only"):
        attempt(other, 1, merge_schema=True).open()


def test_rows_of_the_other_kind_of_commit_cannot_be_replaced(path):
    DeltaAttempt(path, 1).open().add(1, 1)
    second = attempt(path, 2, restored=1, merge_schema=True).open()
    second.add(2, 2)
    with pytest.raises(EnvironmentNotReadyError, match=r"1 file\(s\) that the sink appended without upsert_by"):
        attempt(path, 3, generation=2).open()
    with pytest.raises(EnvironmentNotReadyError, match="has upserted it; set upsert_by as before"):
        DeltaAttempt(path, 3, restored=1).open()
    attempt(path, 4, restored=1, restored_epoch=1).open().add(3, 3)
    assert keys_of(path) == [1, 3]


def test_all_rows_of_a_key_are_updated(path):
    first = attempt(path, 1).open()
    first.add(1, 1)
    none = {
        "_statecheck_lineage": pa.array([None], pa.string()),
        "_statecheck_checkpoint": pa.array([None], pa.int64()),
    }
    write_deltalake(path, pa.table({"key": [1], "name": ["x"], **none}), mode="append")
    first.add(2, 1, name="new")
    assert [row["name"] for row in rows_of(path).to_pylist()] == ["new 1", "new 1"]


def test_upserted_rows_can_be_replaced_after_optimize(path):
    first = attempt(path, 1).open()
    first.add(1, 1)
    first.add(2, 2)
    table_at(path).optimize.compact()
    attempt(path, 2, restored=1).open().add(3, 3)
    assert keys_of(path) == [1, 3]
