"""What tasks write for a table, and what is refused before any work."""

from __future__ import annotations

import datetime as dt
import pickle
import sys
from contextlib import closing
from decimal import Decimal
from importlib.util import find_spec
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform

from airflow_provider_statecheck.exceptions import (
    CoordinatorError,
    CorruptStateError,
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    StorageError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.spark.sinks.iceberg import catalogs
from airflow_provider_statecheck.spark.sinks.iceberg.iceberg_writer import (
    IcebergCommittable,
    decode_data_file,
    encode_data_file,
)
from airflow_provider_statecheck.spark.sinks.iceberg_sink import IcebergSink
from airflow_provider_statecheck.spark.sinks.sink import SinkTaskContext
from tests.unit.spark.sinks.iceberg.tables import (
    SCHEMA,
    TABLE,
    Attempt,
    append_as_somebody_else,
    create_table,
    properties_in,
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


def rows_in(folder, row_filter=None):
    with table_in(folder) as table:
        scan = table.scan() if row_filter is None else table.scan(row_filter)
        return scan.to_arrow().sort_by("key").to_pylist()


@pytest.mark.parametrize("partitions", [BY_VALUE, pytest.param(BY_ALL, marks=needs_core)])
def test_rows_are_written_by_the_partitions_of_the_table_and_found_by_them(tmp_path, partitions):
    create_table(tmp_path, WIDE, partitions)
    attempt = Attempt(tmp_path, 1, schema=WIDE).open()
    attempt.commit(1, [*attempt.write_table(wide(0, 1, 2)), *attempt.write_table(wide(3, 4, 5), subtask=1)])
    assert rows_in(tmp_path) == wide(0, 1, 2, 3, 4, 5).to_pylist()
    assert [row["key"] for row in rows_in(tmp_path, "day = '2026-01-02'")] == [1, 3, 5]
    assert [row["key"] for row in rows_in(tmp_path, "price = 0.25")] == [1, 3, 5]
    with table_in(tmp_path) as table:
        everything = list(table.scan().plan_files())
        assert len(list(table.scan("at = '2026-01-01T18:00:00+00:00'").plan_files())) < len(everything)


@pytest.mark.parametrize("partitions", [BY_VALUE, pytest.param(BY_ALL, marks=needs_core)])
def test_output_in_partitions_can_be_taken_out_again(tmp_path, partitions):
    create_table(tmp_path, WIDE, partitions)
    first = Attempt(tmp_path, 1, schema=WIDE).open()
    first.commit(1, first.write_table(wide(0, 1)))
    first.commit(2, first.write_table(wide(2, 3)))
    second = Attempt(tmp_path, 2, restored=1, restored_epoch=1, schema=WIDE).open()
    second.commit(3, second.write_table(wide(2, 5)))
    assert rows_in(tmp_path) == wide(0, 1, 2, 5).to_pylist()


def test_partitions_that_nobody_here_can_compute_are_refused(tmp_path, monkeypatch):
    create_table(tmp_path, WIDE, BY_ALL)
    monkeypatch.setitem(sys.modules, "pyiceberg_core", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        EnvironmentNotReadyError, match=r"sales.orders by day, found none; .*pyiceberg\[pyiceberg-core\]"
    ):
        Attempt(tmp_path, 1, schema=WIDE).open()


@pytest.mark.parametrize("partitions", [BY_VALUE, pytest.param(BY_ALL, marks=needs_core)])
def test_a_data_file_is_the_same_after_it_was_told(tmp_path, partitions):
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


def test_a_task_without_rows_tells_which_attempt_it_is_of(folder):
    attempt = Attempt(folder, 3).open()
    (task,) = attempt.write()
    assert (task["epoch"], task["files"]) == (3, [])


def test_rows_become_files_when_there_are_enough_of_them(folder):
    attempt = Attempt(folder, 1, buffer_bytes=1).open()
    writer = attempt.task()
    writer.write(rows_of(1))
    writer.write(rows_of(2))
    (task,) = writer.prepare_commit()
    assert len(task["files"]) == 2
    attempt.commit(1, [task])
    assert seen_in(folder) == [1, 2]


def test_columns_may_come_in_any_order_and_optional_ones_may_be_missing(folder):
    schema = pa.schema([("name", pa.string()), ("key", pa.int64())])
    attempt = Attempt(folder, 1, schema=schema).open()
    attempt.commit(1, attempt.write_table(rows_of(1).select(["name", "key"])))
    attempt.commit(2, attempt.write_table(rows_of(2).select(["key"])))
    assert rows_in(folder) == [{"key": 1, "name": "name 1"}, {"key": 2, "name": None}]


def test_a_task_that_fails_deletes_what_it_has_written(folder):
    attempt = Attempt(folder, 1, buffer_bytes=1).open()
    writer = attempt.task()
    writer.write(rows_of(1))
    assert list(folder.rglob("*.parquet"))
    writer.abort()
    assert not list(folder.rglob("*.parquet"))


def test_the_compression_is_that_of_the_table(tmp_path):
    import pyarrow.parquet as pq

    create_table(tmp_path, properties={"write.parquet.compression-codec": "gzip"})
    Attempt(tmp_path, 1).open().write(1)
    (path,) = tmp_path.rglob("*.parquet")
    assert pq.read_metadata(path).row_group(0).column(0).compression == "GZIP"


# What is refused before any work


def test_columns_that_the_table_does_not_have_are_refused(folder):
    schema = SCHEMA.append(pa.field("more", pa.int64()))
    with pytest.raises(UnsupportedStateError, match="more"):
        Attempt(folder, 1, schema=schema).open()


def test_columns_of_other_types_are_refused(folder):
    schema = pa.schema([("key", pa.string()), ("name", pa.string())])
    with pytest.raises(UnsupportedStateError, match="key"):
        Attempt(folder, 1, schema=schema).open()


def test_required_columns_must_be_written(tmp_path):
    create_table(tmp_path, pa.schema([pa.field("key", pa.int64(), nullable=False), ("name", pa.string())]))
    with pytest.raises(UnsupportedStateError, match="required"):
        Attempt(tmp_path, 1).open()


def test_a_missing_table_is_refused(folder):
    sink = IcebergSink("sales.missing", properties=properties_in(folder))
    with pytest.raises(EnvironmentNotReadyError, match=r"sales\.missing in its catalog, found none"):
        sink.open(Attempt(folder, 1).context)


def test_a_table_of_another_format_version_is_refused(tmp_path):
    create_table(tmp_path, properties={"format-version": "1"})
    with pytest.raises(UnsupportedStateError, match="in format 2, found 1"):
        Attempt(tmp_path, 1).open()


def test_a_table_of_other_files_is_refused(tmp_path):
    create_table(tmp_path, properties={"write.format.default": "orc"})
    with pytest.raises(UnsupportedStateError, match="found 'orc'"):
        Attempt(tmp_path, 1).open()


def test_a_catalog_that_does_not_answer_is_told_without_credentials(folder):
    uri = "postgresql+psycopg2://me:hush-hush@localhost:1/none"
    properties = {"type": "sql", "uri": uri, "warehouse": "file:///nowhere", "s3.secret-access-key": "hush-hush"}
    sink = IcebergSink(TABLE, properties=properties)
    with pytest.raises((StorageError, EnvironmentNotReadyError)) as failure:
        sink.open(Attempt(folder, 1).context)
    assert "hush" not in repr(failure.value)


def test_what_changed_in_the_partitions_is_refused_at_the_commit(folder):
    attempt = Attempt(folder, 1).open()
    written = attempt.write(1)
    with table_in(folder) as table, table.update_spec() as update:
        update.add_field("key", IdentityTransform(), "key")
    with pytest.raises(UnsupportedStateError, match=r"partitions of the Iceberg table sales\.orders unchanged"):
        attempt.commit(1, written)
    assert seen_in(folder) == []


def test_new_partitions_are_those_of_later_tasks(folder):
    attempt = Attempt(folder, 1).open()
    with table_in(folder) as table, table.update_spec() as update:
        update.add_field("key", IdentityTransform(), "key")
    attempt.commit(1, attempt.write())
    attempt.add(2, 1, 2)
    assert seen_in(folder) == [1, 2]


def test_pyiceberg_that_is_not_installed_is_told_with_the_extra(folder, monkeypatch):
    def load(address):
        raise ModuleNotFoundError("No module named 'pyiceberg'")

    monkeypatch.setattr(catalogs, "_load_catalog", load)
    with pytest.raises(EnvironmentNotReadyError, match=r"airflow-provider-statecheck\[iceberg\]"):
        Attempt(folder, 1).open()


@pytest.mark.parametrize("arguments", [{"table": "orders"}, {"buffer_bytes": 0}, {"on_earlier_output": "keep"}])
def test_arguments_out_of_their_range_are_refused(arguments):
    with pytest.raises(InvalidConfigurationError):
        IcebergSink(**{"table": TABLE, **arguments})


def test_a_sink_that_is_not_open_is_refused(folder):
    sink = IcebergSink(TABLE, properties=properties_in(folder))
    with pytest.raises(CoordinatorError, match="found it closed"):
        sink.commit(1, [])
    with pytest.raises(CoordinatorError, match="opened before it is used"):
        sink.writer(SinkTaskContext(subtask=0, epoch=1, task_id="task", schema=SCHEMA))


def test_nothing_that_goes_to_tasks_knows_the_catalog(folder):
    import pickle

    attempt = Attempt(folder, 1)
    assert b"sqlite" in pickle.dumps(attempt.sink)
    attempt.open()
    copy = pickle.loads(pickle.dumps(attempt.sink))
    assert copy._address is None
    with pytest.raises(CoordinatorError, match="copy of a task"):
        copy.open(attempt.context)


def test_tasks_know_how_to_reach_the_storage_and_nothing_of_the_catalog(folder):
    import pickle

    more = {"token": "planted-token", "credential": "planted:credential", "s3.region": "planted-region"}
    properties = {**properties_in(folder), **more, "s3.signer.uri": "http://planted:1", "auth.manager": lambda: None}
    attempt = Attempt(folder, 1)
    attempt.sink = IcebergSink(TABLE, properties=properties)
    attempt.open()
    sent = pickle.dumps(attempt.sink)
    assert b"planted-region" in sent
    assert not [word for word in (b"planted-token", b"planted:", b"sqlite") if word in sent]
    attempt.add(1, 1)
    assert seen_in(folder) == [1]


def test_a_catalog_that_signs_each_request_is_refused(folder):
    signed = {"s3.signer": "S3V4RestSigner", "py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"}
    sink = IcebergSink(TABLE, properties={**properties_in(folder), **signed})
    with pytest.raises(UnsupportedStateError, match="vended-credentials"):
        sink.open(Attempt(folder, 1).context)


def test_nothing_shows_credentials(folder):
    attempt = Attempt(folder, 1).open()
    written = attempt.write(1)
    shown = f"{attempt.sink!r} {attempt.sink.__dict__!r} {attempt.task()!r} {written!r}"
    assert "sqlite" not in shown


@pytest.mark.parametrize("document", [{}, {"kind": "iceberg", "format_version": 9}, {"format_version": 1}])
def test_what_another_sink_handed_over_is_refused(document):
    with pytest.raises(CorruptStateError, match="committable of an Iceberg sink"):
        IcebergCommittable.from_json(document)


def test_a_table_that_others_wrote_first_is_taken_over_too(folder):
    append_as_somebody_else(folder, 100)
    attempt = Attempt(folder, 1).open()
    attempt.add(1, 1)
    assert seen_in(folder) == [1, 100]


def test_a_file_that_the_driver_does_not_see_becomes_no_part_of_the_table(folder):
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


def test_a_warehouse_with_a_relative_path_is_below_the_directory_of_the_driver_for_tasks_too(tmp_path, monkeypatch):
    driver, executor = tmp_path / "driver", tmp_path / "executor"
    driver.mkdir()
    executor.mkdir()
    monkeypatch.chdir(driver)
    properties = properties_in(driver) | {"warehouse": "warehouse"}
    with closing(load_catalog(None, **properties)) as catalog:
        catalog.create_namespace("sales")
        catalog.create_table(TABLE, SCHEMA)
    attempt = Attempt(driver, 1)
    attempt.sink = IcebergSink(TABLE, properties=properties)
    attempt.open()
    pickled = pickle.dumps(attempt.sink)
    monkeypatch.chdir(executor)
    attempt_context = SinkTaskContext(subtask=0, epoch=1, task_id="task", schema=SCHEMA)
    writer = pickle.loads(pickled).writer(attempt_context)
    writer.write(rows_of(1, 2))
    written = writer.prepare_commit()
    monkeypatch.chdir(driver)
    attempt.commit(1, written)
    attempt.finish()
    assert seen_in(driver) == [1, 2]
    assert list(executor.iterdir()) == []
