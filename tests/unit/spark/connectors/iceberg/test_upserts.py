"""Upserts by key, and what becomes of upserted rows when their checkpoint is replaced."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import IdentityTransform

from airflow_provider_statecheck.exceptions import CorruptStateError, EnvironmentNotReadyError, UnsupportedStateError
from airflow_provider_statecheck.spark.connectors.iceberg import destination as iceberg_destination
from airflow_provider_statecheck.testing.sink_contract import SCHEMA
from tests.unit.spark.connectors.iceberg.tables import (
    MARKED,
    Attempt,
    append_as_somebody_else,
    create_table,
    rows_in,
    rows_of,
    seen_in,
    table_in,
)


def upserting(folder, epoch, **arguments):
    return Attempt(folder, epoch, **{"upsert_by": ["key"], **arguments})


def names_in(folder):
    return {row["key"]: row["name"] for row in rows_in(folder)}


def marks_in(folder):
    return {row["key"]: row["_statecheck_checkpoint"] for row in rows_in(folder)}


@pytest.fixture
def marked(tmp_path):
    create_table(tmp_path, MARKED)
    return tmp_path


def test_rows_replace_those_with_the_same_keys_of_any_writer(folder):
    append_as_somebody_else(folder, 1, 2)
    append_as_somebody_else(folder, 3, 3)
    attempt = upserting(folder, 1).open()
    attempt.add(1, 2, 3, name="first")
    attempt.add(2, 3, 4, name="second")
    assert [row["key"] for row in rows_in(folder)] == [1, 2, 3, 4]
    assert names_in(folder) == {1: "name 1", 2: "first 2", 3: "second 3", 4: "second 4"}


def test_last_row_of_a_key_wins_within_and_across_files_of_all_partitions(tmp_path):
    create_table(tmp_path, partitions=[("name", IdentityTransform(), "name")])
    attempt = upserting(tmp_path, 1, buffer_bytes=100).open()
    writer = attempt.task()
    for names in (["c", "d", "c"], ["a", "b", "a"]):
        writer.write(pa.table({"key": [2, 1, 1], "name": names}, SCHEMA))
    attempt.commit(1, writer.prepare_commit())
    assert names_in(tmp_path) == {1: "a", 2: "a"}


@pytest.mark.parametrize("count", [1, 150, 1000])
def test_files_without_the_keys_stay_as_they_are(folder, count):
    append_as_somebody_else(folder, *range(10_000, 10_100))
    append_as_somebody_else(folder, *range(count))
    with table_in(folder) as table:
        before = {task.file.file_path for task in table.scan("key >= 10000").plan_files()}
    upserting(folder, 1).open().add(1, *range(count), name="new")
    with table_in(folder) as table:
        assert {task.file.file_path for task in table.scan("key >= 10000").plan_files()} == before
    assert names_in(folder) == {key: f"{'name' if key >= 10_000 else 'new'} {key}" for key in seen_in(folder)}
    assert len(seen_in(folder)) == 100 + count


KEYS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.string(), ["a", "ä", "b" * 40, "b" * 40 + "c"]),
    (pa.binary(), [b"a", b"b", b"c", b""]),
    (pa.bool_(), [True, False]),
    (pa.date32(), [dt.date(2026, 1, day) for day in (1, 2, 3)]),
    (pa.timestamp("us"), [dt.datetime(2026, 1, day) for day in (1, 2, 3)]),  # noqa: DTZ001 - the type has no zone
    (pa.timestamp("us", "UTC"), [dt.datetime(2026, 1, day, tzinfo=dt.UTC) for day in (1, 2, 3)]),
    (pa.decimal128(20, 2), [Decimal(n) / 4 for n in (1, 2, 3)]),
    (pa.int32(), [1, 2, 3]),
]


@pytest.mark.parametrize(("kind", "values"), KEYS, ids=[str(kind) for kind, _ in KEYS])
@pytest.mark.parametrize("most", [0, 200])
def test_keys_of_every_exact_type_match(tmp_path, monkeypatch, kind, values, most):
    monkeypatch.setattr("airflow_provider_statecheck.spark.connectors.iceberg.writer.MOST_VALUES", most)
    schema = pa.schema([("key", kind), ("part", pa.int64()), ("tags", pa.list_(pa.string()))])
    create_table(tmp_path, schema)
    attempt = upserting(tmp_path, 1, schema=schema, upsert_by=["part", "key"]).open()
    for tag in ("old", "new"):
        rows = [{"key": value, "part": part, "tags": [tag]} for part in (1, 2) for value in values]
        attempt.commit(1 if tag == "old" else 2, attempt.write_table(pa.Table.from_pylist(rows[:-1], schema)))
    found = rows_in(tmp_path)
    assert len(found) == 2 * len(values) - 1
    assert {tuple(row["tags"]) for row in found} == {("new",)}


def test_null_key_fails_the_task_that_writes_it(folder):
    append_as_somebody_else(folder, 1)
    with table_in(folder) as table:
        table.append(pa.table({"key": [None], "name": ["null"]}, SCHEMA))
    attempt = upserting(folder, 1).open()
    for rows in (rows_of(1).select(["name"]), pa.table({"key": [2, None], "name": ["a", "b"]}, SCHEMA)):
        with pytest.raises(UnsupportedStateError, match="found null in key"):
            attempt.write_table(rows)
    attempt.commit(1, attempt.write_table(rows_of(1).select(["key"])))
    assert names_in(folder) == {1: None, None: "null"}


def test_checkpoint_becomes_one_snapshot_and_leaves_no_other_files(folder):
    attempt = upserting(folder, 1).open()
    attempt.add(1, 1, 2)
    with table_in(folder) as table:
        assert table.current_snapshot().summary.operation is Operation.APPEND
        before = len(table.metadata.snapshots)
    attempt.add(2, 2, 3)
    with table_in(folder) as table:
        assert table.current_snapshot().summary.operation is Operation.OVERWRITE
        assert len(table.metadata.snapshots) == before + 1
    assert not list(folder.rglob("statecheck-*.parquet"))


def test_concurrent_upsert_of_the_same_key_is_merged_again(folder, monkeypatch):
    real_commit = iceberg_destination.commit_edit
    first, second = upserting(folder, 1).open(), upserting(folder, 1, job="another").open()
    between = [lambda: second.add(1, 1, 2, name="second")]

    def commit(*args):
        if between:
            between.pop()()
        real_commit(*args)

    monkeypatch.setattr(iceberg_destination, "commit_edit", commit)
    monkeypatch.setattr(
        "airflow_provider_statecheck.spark.connectors.exactly_once.committer.pause", lambda number: None
    )
    first.add(1, 1, 3, name="first")
    assert names_in(folder) == {1: "first 1", 2: "second 2", 3: "first 3"}


# Retraction


def test_fallback_deletes_inserted_rows_and_keeps_updated_ones(marked):
    append_as_somebody_else(marked, 100)
    first = upserting(marked, 1).open()
    first.add(1, 1, name="one")
    first.add(2, 1, 2, 100, name="two")
    assert marks_in(marked) == {1: 1, 2: 2, 100: None}
    second = upserting(marked, 2, restored=1).open()
    second.add(3, 3, name="three")
    assert names_in(marked) == {1: "two 1", 3: "three 3", 100: "two 100"}


def test_start_that_must_delete_rows_without_marks_is_refused(folder):
    upserting(folder, 1).open().add(1, 1)
    for upsert_by in (["key"], []):
        with pytest.raises(EnvironmentNotReadyError, match="cannot be rolled back"):
            Attempt(folder, 2, generation=2, upsert_by=upsert_by).open()


def test_columns_of_marks_that_were_dropped_are_missed(marked):
    attempt = upserting(marked, 1).open()
    attempt.add(1, 1)
    with table_in(marked) as table, table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("_statecheck_checkpoint")
    for call in (lambda: attempt.add(2, 2), Attempt(marked, 2, generation=2).open):
        with pytest.raises(UnsupportedStateError, match="found that they were dropped"):
            call()


def test_sink_that_appended_before_replaces_files_and_rows_together(marked):
    Attempt(marked, 1).open().add(1, 1, 2)
    second = upserting(marked, 2, restored=1).open()
    second.add(2, 3)
    third = upserting(marked, 3, generation=2).open()
    third.add(3, 2, 4)
    assert marks_in(marked) == {2: 3, 4: 3}
    Attempt(marked, 4, generation=3).open().add(4, 5)
    assert marks_in(marked) == {5: None}


def test_appended_files_that_an_upsert_has_rewritten_cannot_be_removed(marked):
    Attempt(marked, 1).open().add(1, 1, 2)
    upserting(marked, 2, restored=1).open().add(2, 2)
    with pytest.raises(CorruptStateError, match=r"Expected 1 file of 2 checkpoints"):
        upserting(marked, 3, generation=2).open()


def test_repeated_commit_after_a_change_to_upserts_changes_nothing(marked):
    written = Attempt(marked, 1).open().add(1, 1, 2)
    second = upserting(marked, 2, restored=1).open()
    second.commit(1, written)
    late = second.add(2, 2)
    Attempt(marked, 3, restored=2, restored_epoch=2).open().commit(2, late)
    assert seen_in(marked) == [1, 2]


# What is refused before any work


RATIO = pa.field("ratio", pa.float64())


@pytest.mark.parametrize(
    ("keys", "output", "problem"),
    [
        (["missing"], SCHEMA, "found no missing among key, name"),
        (["_statecheck_lineage"], SCHEMA, "found no _statecheck_lineage among"),
        (["ratio"], SCHEMA.append(RATIO), r"ratio \(double\)"),
        (["key"], MARKED, "the sink uses this name"),
    ],
)
def test_output_that_cannot_be_upserted_is_refused(tmp_path, keys, output, problem):
    create_table(tmp_path, MARKED.append(RATIO))
    with pytest.raises(UnsupportedStateError, match=problem):
        upserting(tmp_path, 1, upsert_by=keys, schema=output).open()


def test_table_with_equality_deletes_is_refused(folder):
    with table_in(folder) as table:
        table.append(rows_of(1), snapshot_properties={"added-equality-deletes": "1"})
    with pytest.raises(UnsupportedStateError, match="equality deletes"):
        upserting(folder, 1).open()
