"""What is refused before any work, and with which words."""

from __future__ import annotations

import json
import pickle
from contextlib import suppress
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_statecheck.exceptions import (
    CoordinatorError,
    CorruptStateError,
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    StorageError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.spark.connectors.custom.two_phase_commit_sink import TransactionCommittable
from airflow_provider_statecheck.spark.connectors.delta.output import DeltaCommittable
from airflow_provider_statecheck.spark.connectors.delta.sink import DeltaSink
from airflow_provider_statecheck.spark.connectors.delta.source import DeltaSource
from airflow_provider_statecheck.spark.connectors.exactly_once.commit_files import seal, unseal
from airflow_provider_statecheck.spark.connectors.exactly_once.target_files import TargetFiles
from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink, committed_files
from airflow_provider_statecheck.spark.connectors.iceberg.sink import IcebergSink
from airflow_provider_statecheck.spark.connectors.iceberg.writer import IcebergCommittable
from airflow_provider_statecheck.spark.connectors.sink import Committable, Sink
from airflow_provider_statecheck.spark.connectors.sql.sink import SqlSink
from airflow_provider_statecheck.spark.tables.data_files import FileLayout
from airflow_provider_statecheck.testing.sink_contract import SCHEMA, SinkAttempt
from tests.unit.spark.connectors.attempts import Attempt, committed_in, hidden_in, seen_in
from tests.unit.spark.connectors.folder_sink import FolderSink


def put(path, name, table):
    filesystem, root = fsspec.url_to_fs(path)
    filesystem.makedirs(f"{root}/{name}".rpartition("/")[0], exist_ok=True)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    filesystem.pipe_file(f"{root}/{name}", sink.getvalue().to_pybytes())


def altered(*changes):
    schema = SCHEMA
    for field in changes:
        position = schema.get_field_index(field.name)
        schema = schema.append(field) if position < 0 else schema.set(position, field)
    return schema


# Settings


KEEP = ({"on_earlier_output": "keep"}, "on_earlier_output to be one of retract, refuse")
FILES = ({"max_file_bytes": 0}, "max_file_bytes to be a whole number of at least 1")
UPSERTS = [
    ({"upsert_by": each}, "upsert_by as a list of unique column names") for each in ("key", ["a", "a"], [""], [1], None)
]


@pytest.mark.parametrize(
    ("make", "refused"),
    [
        (
            partial(ParquetSink, "memory://x/y"),
            [
                KEEP,
                FILES,
                ({"compression": "zip"}, "compression to be one of zstd"),
                ({"partition_by": "day"}, "partition_by as a list of unique column names, found 'day'"),
                ({"partition_by": ["_day"]}, "no name beginning with"),
                ({"partition_by": ["a", "a"]}, "unique column names"),
            ],
        ),
        (
            partial(DeltaSink, "table"),
            [
                KEEP,
                FILES,
                *UPSERTS,
                ({"compression": "lzo"}, "compression to be one of zstd"),
                ({"partition_by": "day"}, "partition_by as a list of unique column names, found 'day'"),
            ],
        ),
        (
            partial(IcebergSink, table="sales.orders"),
            [KEEP, *UPSERTS, ({"table": "orders"}, "with its namespace"), ({"buffer_bytes": 0}, "buffer_bytes to be")],
        ),
        (partial(SqlSink, "sqlite:///x.db", "balances", staging="staging"), [KEEP, *UPSERTS]),
    ],
    ids=["parquet", "delta", "iceberg", "sql"],
)
def test_settings_out_of_their_range_are_refused(make, refused):
    for settings, message in refused:
        with pytest.raises(InvalidConfigurationError, match=message):
            make(**settings)


@pytest.mark.parametrize("path", ["", "s3:/x", "memory://x/*.parquet", "nowhere://x/y", None, 5, b"/data/x"])
def test_a_target_that_is_no_directory_by_its_name_is_refused(path):
    with pytest.raises(InvalidConfigurationError) as caught:
        Attempt(path, 1).open()
    assert "checkpoint_dir" not in str(caught.value)


@pytest.mark.parametrize("kind", [ParquetSink, DeltaSink, DeltaSource])
def test_a_target_may_be_a_path_object(kind):
    assert repr(kind(Path("/data/x"))) == f"{kind.__name__}('/data/x')"


def test_the_size_of_a_file_may_be_an_integer_of_numpy():
    size: Any = numpy.int64(5)
    layout = FileLayout(compression="zstd", partition_by=(), max_file_bytes=size)
    assert json.dumps(layout.max_file_bytes) == "5"


def test_options_are_never_shown_and_reach_the_tasks():
    sink = ParquetSink("s3://user:planted@bucket/x", storage_options={"secret": "planted"})
    assert "planted" not in repr(sink)
    assert isinstance(pickle.loads(pickle.dumps(sink)), Sink)
    context = Attempt("memory://x/y", 1, storage_options={"secret": "planted"}).context
    assert "planted" not in repr(context)


# What is there


def test_a_target_that_is_a_file_is_refused(path):
    filesystem, root = fsspec.url_to_fs(path)
    filesystem.makedirs(root.rpartition("/")[0], exist_ok=True)
    filesystem.pipe_file(root, b"x")
    with pytest.raises(EnvironmentNotReadyError, match=r"Expected a directory or nothing at .*, found a file"):
        Attempt(path, 1).open()


def test_a_target_where_nothing_can_be_written_is_told_before_any_work(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="The storage failed at file:///"):
        Attempt(f"file://{tmp_path}/file/below", 1).open()


def test_a_strangers_file_with_another_schema_is_refused(path):
    put(path, "old.parquet", pa.table({"key": ["text"], "name": ["x"]}))
    with pytest.raises(UnsupportedStateError, match="column 'key' is string there and int64 here"):
        Attempt(path, 1).open()
    assert hidden_in(path, "heads") == []


def test_a_strangers_file_that_is_no_parquet_is_refused(path):
    filesystem, root = fsspec.url_to_fs(path)
    filesystem.makedirs(root, exist_ok=True)
    filesystem.pipe_file(f"{root}/old.parquet", b"not at all")
    with pytest.raises(UnsupportedStateError, match=r"the file old.parquet, found: it is not a Parquet file"):
        Attempt(path, 1).open()


def test_a_strangers_file_that_fits_stays_beside_ours(path):
    put(path, "old.parquet", pa.table({"key": [7], "name": ["x"]}))
    put(path, "_hidden/other.parquet", pa.table({"key": ["text"]}))
    Attempt(path, 1).open().add(1, 1)
    assert seen_in(path) == [1, 7]


def test_a_stranger_with_other_partitions_is_refused(path):
    put(path, "day=1/old.parquet", pa.table({"key": [7]}))
    with pytest.raises(UnsupportedStateError, match="partitioned by day there and by nothing here"):
        Attempt(path, 1).open()


def test_another_lineage_with_another_schema_is_refused(path):
    Attempt(path, 1, job="other").open().add(1, 1)
    schema = altered(pa.field("key", pa.string()))
    with pytest.raises(
        UnsupportedStateError, match="the output of 'stage/sink' of job 'other', found: column 'key' is int64 there"
    ):
        Attempt(path, 1, schema=schema).open()
    with pytest.raises(UnsupportedStateError, match="by nothing there and by name here"):
        Attempt(path, 1, partition_by=["name"]).open()
    with pytest.raises(UnsupportedStateError, match="no column has a name in common"):
        Attempt(path, 1, schema=pa.schema([("other", pa.int64())])).open()


# Committables


KINDS: list[Any] = [Committable, DeltaCommittable, IcebergCommittable, TransactionCommittable]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_committable_of_the_sink_is_refused(kind):
    others = [{**each.FORMAT, "lineage": "x", "epoch": 1, "subtask": 0} for each in KINDS if each.FORMAT != kind.FORMAT]
    for document in ({}, {**kind.FORMAT, "format_version": 9}, {**kind.FORMAT, "lineage": "x", "files": 3}, *others):
        with pytest.raises(CorruptStateError, match=f"Expected {kind.KIND} of format 1"):
            kind.from_json(document)


def test_a_commit_with_the_committables_of_another_sink_is_refused(path, tmp_path):
    for keys in ([], ["key"]):
        sink = DeltaSink(str(tmp_path / f"delta-{len(keys)}"), upsert_by=keys)
        written = SinkAttempt(sink, 1).open().write(1)
        with pytest.raises(CorruptStateError, match="Expected the uncommitted output of a Parquet sink of format 1"):
            Attempt(path, 1).open().commit(1, written)


# The schema over time


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (altered(pa.field("key", pa.int32())), "column 'key' is int64 there and int32 here"),
        (SCHEMA.remove(1), "column 'name' is missing here"),
    ],
)
def test_a_changed_schema_is_refused_with_what_changed(path, schema, message):
    Attempt(path, 1).open().add(1, 1)
    with pytest.raises(UnsupportedStateError, match=message):
        Attempt(path, 2, restored=1, schema=schema).open()
    unchecked = Attempt(path, 2, restored=1, schema=None).open()
    writer = unchecked.task(schema=schema)
    with pytest.raises(UnsupportedStateError, match=message):
        unchecked.commit(2, writer.prepare_commit())


def test_nullability_is_no_part_of_the_schema(path):
    parts = pa.list_(pa.field("element", pa.int64(), nullable=False))
    strict = altered(pa.field("key", pa.int64(), nullable=False)).append(pa.field("parts", parts, nullable=False))
    loose = altered(pa.field("key", pa.int64())).append(pa.field("parts", pa.list_(pa.int64())))
    for epoch, schema in enumerate((strict, loose, strict), 1):
        restored = {"restored": epoch - 1, "restored_epoch": epoch - 1} if epoch > 1 else {}
        attempt = Attempt(path, epoch, schema=schema, **restored).open()
        rows = pa.Table.from_pylist([{"key": epoch, "name": "a", "parts": [1]}], schema)
        attempt.commit(epoch, attempt.write_table(rows))
    assert committed_in(path) == [1, 2, 3]


@pytest.mark.parametrize("nullable", [True, False])
def test_new_columns_are_added(path, nullable):
    Attempt(path, 1).open().add(1, 1)
    wider = altered(pa.field("day", pa.date32(), nullable=nullable))
    second = Attempt(path, 2, restored=1, schema=wider).open()
    second.commit(
        2, second.write_table(pa.Table.from_pylist([{"key": 2, "name": "a", "day": date(2026, 1, 1)}], wider))
    )
    assert committed_in(path) == [1, 2]
    with pytest.raises(UnsupportedStateError, match="column 'day' is missing here"):
        Attempt(path, 3, restored=2, restored_epoch=2).open()


def test_the_schema_outlives_a_fresh_start(path):
    Attempt(path, 1).open().add(1, 1)
    Attempt(path, 2, generation=2).open().finish()
    with pytest.raises(UnsupportedStateError, match="column 'key' is int64 there"):
        Attempt(path, 3, generation=3, schema=altered(pa.field("key", pa.int32()))).open()


def test_other_partitions_than_before_are_refused(path):
    Attempt(path, 1).open().add(1, 1)
    with pytest.raises(UnsupportedStateError, match="partitioned by nothing there and by name here"):
        Attempt(path, 2, restored=1, partition_by=["name"]).open()


def test_tasks_of_one_checkpoint_that_disagree_are_refused(path):
    attempt = Attempt(path, 1, schema=None).open()
    other = altered(pa.field("key", pa.int32()))
    with pytest.raises(UnsupportedStateError, match="column 'key' is int64 there and int32 here"):
        attempt.commit(1, [*attempt.write(1), *attempt.write(2, schema=other)])


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (pa.schema([("a", pa.int64()), ("a", pa.int64())]), "found a more than once"),
        (pa.schema([]), "found none at all"),
        (pa.schema([("a", pa.struct([]))]), "a Parquet sink stores, found struct<> in column 'a'"),
        (pa.schema([("a", pa.month_day_nano_interval())]), "Expected output that Parquet can store"),
    ],
)
def test_what_parquet_cannot_hold_is_refused(path, schema, message):
    with pytest.raises(UnsupportedStateError, match=message):
        Attempt(path, 1, schema=schema).open()


# The ledger


def test_a_damaged_ledger_is_told(path):
    Attempt(path, 1).open().add(1, 1)
    filesystem, root = fsspec.url_to_fs(path)
    record = next(n for n in filesystem.find(root) if "/commits/" in n)
    kept = filesystem.cat_file(record)
    filesystem.pipe_file(record, b"{}")
    with pytest.raises(CorruptStateError, match=r"Expected the output of a checkpoint in .*commits/1-1.json"):
        Attempt(path, 2, restored=1).open()
    document = unseal(kept, "", "")
    document["committables"][0]["format_version"] = 9
    filesystem.pipe_file(record, seal(document))
    with pytest.raises(CorruptStateError, match="restore with the version"):
        committed_files(path)
    filesystem.pipe_file(record, kept)
    log = next(n for n in filesystem.find(root) if "/attempts/" in n)
    filesystem.pipe_file(log, b"x")
    with pytest.raises(CorruptStateError, match="Expected the log of a sink"):
        Attempt(path, 2, restored=1).open()


def test_a_changed_byte_of_the_ledger_changes_no_committed_file(path):
    attempt = Attempt(path, 1).open()
    attempt.add(1, 1)
    attempt.add(2, 2)
    filesystem, root = fsspec.url_to_fs(path)
    expected = committed_files(path)
    for kind in ("/commits/", "/attempts/"):
        name = next(n for n in filesystem.find(root) if kind in n)
        kept = filesystem.cat_file(name)
        for position in range(0, len(kept), 3):
            filesystem.pipe_file(name, kept[:position] + bytes([kept[position] ^ 1]) + kept[position + 1 :])
            with suppress(CorruptStateError):
                assert committed_files(path) == expected
        filesystem.pipe_file(name, kept)
    assert committed_files(path) == expected


@pytest.mark.parametrize("name", ["other.parquet", "_statecheck/other/x", "_statecheck/mine/../x", "a/../part"])
def test_no_file_of_others_can_be_changed(path, name):
    files = TargetFiles.open(path, "mine", {})
    for change in (lambda: files.delete(name), lambda: files.move(name, name)):
        with pytest.raises(CoordinatorError, match="Expected a file of this sink, with mine in its name"):
            change()


def with_relative_log(driver):
    return FolderSink(driver, log="log")


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda _: ParquetSink("table"), id="parquet"),
        pytest.param(lambda _: DeltaSink("table"), id="delta"),
        pytest.param(lambda _: SqlSink("sqlite:///output.db", "balances", staging="staging"), id="sql"),
        pytest.param(with_relative_log, id="two-phase"),
    ],
)
def test_a_copy_that_was_never_opened_means_the_directory_in_which_it_is_opened(make, tmp_path, monkeypatch):
    driver, elsewhere = tmp_path / "driver", tmp_path / "elsewhere"
    driver.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    pickled = pickle.dumps(make(driver))
    monkeypatch.chdir(driver)
    attempt = SinkAttempt(pickle.loads(pickled), 1).open()
    attempt.add(1, 1)
    assert list(driver.iterdir())
    assert list(elsewhere.iterdir()) == []
