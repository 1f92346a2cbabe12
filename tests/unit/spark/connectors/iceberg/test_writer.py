"""What tasks write for a table, and what is refused before any work."""

from __future__ import annotations

import datetime as dt
import pickle
import sys
from decimal import Decimal
from importlib.util import find_spec
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform

from airflow_provider_statecheck.exceptions import (
    CoordinatorError,
    CorruptStateError,
    EnvironmentNotReadyError,
    StorageError,
    UnfitOutputError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.spark.connectors.iceberg import table as iceberg_tables
from airflow_provider_statecheck.spark.connectors.iceberg.sink import IcebergSink
from airflow_provider_statecheck.spark.connectors.iceberg.table import decode_data_file, encode_data_file
from airflow_provider_statecheck.testing.sink_attempts import SinkAttempt
from airflow_provider_statecheck.testing.sink_contract import SCHEMA
from tests.unit.spark.connectors.iceberg.tables import (
    TABLE,
    Attempt,
    create_table,
    opened,
    properties_in,
    rows_in,
    rows_of,
    seen_in,
    table_in,
)

WIDE = pa.schema(
    [
        ("key", pa.int64()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("price", pa.decimal128(9, 2)),
        ("name", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("lat", pa.float64()), ("lon", pa.float64())])),
    ]
)
BY_VALUE: list[tuple[str, Any, str]] = [
    ("day", IdentityTransform(), "by_day"),
    ("price", IdentityTransform(), "by_price"),
]
BY_ALL = [
    *BY_VALUE,
    ("at", DayTransform(), "at_day"),
    ("name", TruncateTransform(3), "name_start"),
    ("key", BucketTransform(4), "key_bucket"),
]
needs_core = pytest.mark.skipif(find_spec("pyiceberg_core") is None, reason="pyiceberg-core computes partitions")


def wide(*keys: int) -> pa.Table:
    rows = [
        {
            "key": key,
            "day": dt.date(2026, 1, 1 + key % 2),
            "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=6 * key),
            "price": Decimal(key % 2) / 4 if key else None,
            "name": f"name {key}",
            "tags": ["a", None],
            "place": {"lat": 1.5, "lon": None},
        }
        for key in keys
    ]
    return pa.Table.from_pylist(rows, WIDE)


@pytest.mark.parametrize("partitions", [BY_VALUE, pytest.param(BY_ALL, marks=needs_core)])
def test_rows_are_written_by_the_partitions_of_the_table_found_by_them_and_removed(tmp_path, partitions):
    create_table(tmp_path, WIDE, partitions)
    first = Attempt(tmp_path, 1, schema=WIDE).open()
    first.commit(1, [*first.write_table(wide(0, 1, 2)), *first.write_table(wide(3, 4, 5), subtask=1)])
    assert rows_in(tmp_path) == wide(0, 1, 2, 3, 4, 5).to_pylist()
    assert [row["key"] for row in rows_in(tmp_path, "day = '2026-01-02'")] == [1, 3, 5]
    assert [row["key"] for row in rows_in(tmp_path, "price = 0.25")] == [1, 3, 5]
    with table_in(tmp_path) as table:
        everything = list(table.scan().plan_files())
        assert len(list(table.scan("at = '2026-01-01T18:00:00+00:00'").plan_files())) < len(everything)
    first.commit(2, first.write_table(wide(6, 7)))
    second = Attempt(tmp_path, 2, restored=1, schema=WIDE).open()
    second.commit(3, second.write_table(wide(6, 9)))
    assert rows_in(tmp_path) == wide(0, 1, 2, 3, 4, 5, 6, 9).to_pylist()


def test_partitions_that_nobody_here_can_compute_are_refused(tmp_path, monkeypatch):
    create_table(tmp_path, WIDE, BY_ALL)
    monkeypatch.setitem(sys.modules, "pyiceberg_core", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        EnvironmentNotReadyError, match=r"sales.orders by day, found none; .*pyiceberg\[pyiceberg-core\]"
    ):
        Attempt(tmp_path, 1, schema=WIDE).open()


@pytest.mark.parametrize("partitions", [BY_VALUE, pytest.param(BY_ALL, marks=needs_core)])
def test_data_file_is_the_same_after_it_was_told(tmp_path, partitions):
    create_table(tmp_path, WIDE, partitions)
    attempt = Attempt(tmp_path, 1, schema=WIDE).open()
    (task,) = attempt.write_table(wide(0, 1, 2))
    for document in task["files"]:
        file = decode_data_file(document)
        assert encode_data_file(file) == document
        assert "lower_bounds" not in encode_data_file(file, with_metrics=False)
    attempt.commit(1, [task])
    with table_in(tmp_path) as table:
        known = {entry.file.file_path: entry.file for entry in table.scan().plan_files()}
    for document in task["files"]:
        assert encode_data_file(known[document["path"]]) == document


def test_columns_may_come_in_any_order_and_optional_ones_may_be_missing(folder):
    schema = pa.schema([("name", pa.string()), ("key", pa.int64())])
    attempt = Attempt(folder, 1, schema=schema).open()
    attempt.commit(1, attempt.write_table(rows_of(1).select(["name", "key"])))
    attempt.commit(2, attempt.write_table(rows_of(2).select(["key"])))
    assert rows_in(folder) == [{"key": 1, "name": "name 1"}, {"key": 2, "name": None}]


def test_full_buffer_becomes_a_file_that_a_failing_task_deletes(folder):
    attempt = Attempt(folder, 1, buffer_bytes=1).open()
    writer, failing = attempt.task(), attempt.task(1)
    for key in (1, 2):
        writer.write(rows_of(key))
        failing.write(rows_of(key))
    assert len(list(folder.rglob("*.parquet"))) == 4
    failing.abort()
    attempt.commit(1, writer.prepare_commit())
    assert seen_in(folder) == [1, 2]
    assert len(list(folder.rglob("*.parquet"))) == 2


def test_the_compression_is_that_of_the_table(tmp_path):
    create_table(tmp_path, properties={"write.parquet.compression-codec": "gzip"})
    Attempt(tmp_path, 1).open().write(1)
    (path,) = tmp_path.rglob("*.parquet")
    assert pq.read_metadata(path).row_group(0).column(0).compression == "GZIP"


# What is refused before any work


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ([("key", pa.int64()), ("more", pa.int64())], "more"),
        ([("key", pa.string()), ("name", pa.string())], "key"),
        ([("name", pa.string())], "required"),
    ],
)
def test_output_that_does_not_fit_the_columns_is_refused(tmp_path, columns, problem):
    create_table(tmp_path, pa.schema([pa.field("key", pa.int64(), nullable=False), ("name", pa.string())]))
    with pytest.raises(UnsupportedStateError, match=problem):
        Attempt(tmp_path, 1, schema=pa.schema(columns)).open()


def test_required_column_takes_values_and_refuses_null_before_the_checkpoint(tmp_path):
    create_table(tmp_path, pa.schema([pa.field("key", pa.int64(), nullable=False), ("name", pa.string())]))
    attempt = Attempt(tmp_path, 1).open()
    attempt.add(1, 1)
    with pytest.raises(UnsupportedStateError, match=r"column 'key', which cannot be null .* null in 1 row;"):
        attempt.write_table(pa.table({"key": pa.array([None], pa.int64()), "name": ["a"]}))


@pytest.mark.parametrize(
    ("properties", "found"),
    [({"format-version": "1"}, "in format 2, found 1"), ({"write.format.default": "orc"}, "found 'orc'")],
)
def test_table_of_another_format_is_refused(tmp_path, properties, found):
    create_table(tmp_path, properties=properties)
    with pytest.raises(UnsupportedStateError, match=found):
        Attempt(tmp_path, 1).open()


def test_missing_table_is_refused(folder):
    with opened(folder) as catalog:
        catalog.drop_table(TABLE)
    with pytest.raises(EnvironmentNotReadyError, match=r"sales\.orders in its catalog, found none"):
        Attempt(folder, 1).open()


def test_catalog_that_does_not_answer_is_told_without_credentials(folder):
    uri = "postgresql+psycopg2://me:hush-hush@localhost:1/none"
    with pytest.raises((StorageError, EnvironmentNotReadyError)) as failure:
        Attempt(folder, 1, properties={"uri": uri, "s3.secret-access-key": "hush-hush"}).open()
    assert "hush" not in repr(failure.value)


def test_changed_partitions_apply_to_tasks_after_the_next_commit_and_earlier_files_are_refused(folder):
    attempt = Attempt(folder, 1).open()
    written = attempt.write(1)
    with table_in(folder) as table, table.update_spec() as update:
        update.add_field("key", IdentityTransform(), "key")
    with pytest.raises(UnsupportedStateError, match=r"partitions of the Iceberg table sales\.orders unchanged"):
        attempt.commit(1, written)
    attempt.commit(2, attempt.write())
    attempt.add(3, 2, 3)
    assert seen_in(folder) == [2, 3]


def test_pyiceberg_that_is_not_installed_is_told_with_the_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    with pytest.raises(EnvironmentNotReadyError, match=r"airflow-provider-statecheck\[iceberg\]"):
        Attempt(folder, 1).open()


def test_tasks_know_the_storage_and_nothing_of_the_catalog(folder):
    more = {"token": "planted-token", "credential": "planted:credential", "s3.region": "planted-region"}
    properties = {**more, "s3.signer.uri": "http://planted:1", "auth.manager": lambda: None}
    attempt = Attempt(folder, 1, properties=properties).open()
    written = attempt.write(1)
    sent = pickle.dumps(attempt.sink)
    shown = f"{attempt.sink!r} {attempt.sink.__dict__!r} {attempt.task()!r} {written!r}".encode()
    assert b"planted-region" in sent
    for secret in (b"planted-token", b"planted:", b"sqlite"):
        assert secret not in sent
        assert secret not in shown
    with pytest.raises(CoordinatorError, match="copy of a task"):
        pickle.loads(sent).open(attempt.context)


def test_catalog_is_released_when_the_sink_fails_to_open_and_when_it_closes(folder, monkeypatch):
    closed: list[Any] = []
    monkeypatch.setattr(iceberg_tables.OpenTable, "close", lambda table: closed.append(table))
    with pytest.raises(UnsupportedStateError):
        Attempt(folder, 1, schema=pa.schema([("more", pa.int64())])).open()
    assert len(closed) == 1
    Attempt(folder, 1).open().sink.close(succeeded=False)
    assert len(closed) == 2


def test_catalog_that_signs_each_request_is_refused(folder):
    signed = {"s3.signer": "S3V4RestSigner", "py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"}
    with pytest.raises(UnsupportedStateError, match="vended-credentials"):
        Attempt(folder, 1, properties=signed).open()


def test_file_that_the_driver_does_not_see_becomes_no_part_of_the_table(folder):
    attempt = Attempt(folder, 1).open()
    written = attempt.write(1)
    (file,) = (folder / "warehouse").rglob("statecheck-*.parquet")
    moved = file.rename(folder / "on-another-disk")
    with pytest.raises(CorruptStateError, match=r"of checkpoint 1 .* found none; it was deleted, or .* another disk"):
        attempt.commit(1, written)
    assert seen_in(folder) == []
    moved.rename(file)
    attempt.commit(1, written)
    assert seen_in(folder) == [1]


def test_relative_warehouse_is_below_the_directory_of_the_driver_for_tasks_too(tmp_path, monkeypatch):
    driver, executor = tmp_path / "driver", tmp_path / "executor"
    executor.mkdir()
    create_table(driver)
    monkeypatch.chdir(driver)
    with opened(driver) as catalog:
        catalog.drop_table(TABLE)
        catalog.create_table(TABLE, SCHEMA, location="warehouse/orders")
    attempt = Attempt(driver, 1).open()
    monkeypatch.chdir(executor)
    written = attempt.write(1, 2)
    monkeypatch.chdir(driver)
    attempt.commit(1, written)
    assert seen_in(driver) == [1, 2]
    assert list(executor.iterdir()) == []


PART = pa.struct([("a", pa.int32())])


@pytest.mark.parametrize(
    ("kind", "empty"),
    [
        (pa.list_(PART), []),
        (pa.map_(pa.string(), PART), []),
        (pa.struct([("l", pa.list_(PART))]), {"l": []}),
        (pa.list_(pa.list_(PART)), [[]]),
    ],
    ids=str,
)
def test_null_list_or_map_of_structs_that_would_become_empty_is_refused(tmp_path, kind, empty):
    schema = pa.schema([("key", pa.int64()), ("l", kind)])
    create_table(tmp_path, schema)
    attempt = SinkAttempt(IcebergSink(TABLE, properties=properties_in(tmp_path)), 1, schema=schema).open()
    attempt.write_table(pa.table({"key": [1], "l": [empty]}, schema=schema))
    lost: Any = None if not pa.types.is_struct(kind) else {"l": None}
    lost = [None] if kind == pa.list_(pa.list_(PART)) else lost
    with pytest.raises(UnfitOutputError, match="column 'l' has 1 value of null in place of a list or map of structs"):
        attempt.write_table(pa.table({"key": [1, 2], "l": [empty, lost]}, schema=schema))
    attempt.sink.close(False)
