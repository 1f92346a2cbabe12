"""What a Delta sink refuses before any work, and how columns are brought together."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType

from airflow_provider_statecheck.exceptions import (
    CoordinatorError,
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    StorageError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.spark.sinks.delta.delta_table import DeltaFiles, library_options
from airflow_provider_statecheck.spark.sinks.delta_sink import DeltaSink
from tests.unit.spark.sinks.attempts import SCHEMA
from tests.unit.spark.sinks.delta.attempts import DeltaAttempt, keys_of, rows_of, table_at

WIDER = pa.schema([*SCHEMA, pa.field("price", pa.float64())])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"compression": "lzo"}, "compression to be one of zstd"),
        ({"on_earlier_output": "keep"}, "on_earlier_output to be one of retract, refuse"),
        ({"max_file_bytes": 0}, "max_file_bytes of 1 or more"),
        ({"partition_by": "day"}, "list of unique column names, found 'day'"),
        ({"partition_by": ["day", "day"]}, "list of unique column names"),
    ],
)
def test_settings_out_of_their_range_are_refused(settings, message):
    with pytest.raises(InvalidConfigurationError, match=message):
        DeltaSink("table", **settings)


def test_options_are_never_shown_and_those_of_the_commit_stay_on_the_driver(path):
    attempt = DeltaAttempt(path, 1, storage_options={"auto_mkdir": True}, delta_options={"x": "secret-1"}).open()
    assert "secret" not in repr(vars(attempt.sink))
    assert b"secret-1" not in pickle.dumps(attempt.sink)
    assert repr(DeltaSink("s3://name:password@lake/t")) == "DeltaSink('s3://***@lake/t')"


def test_options_of_filesystems_are_those_of_deltalake_under_other_names():
    s3 = {"key": "k", "secret": "s", "client_kwargs": {"endpoint_url": "http://h:1", "region_name": "r"}}
    assert library_options("s3://lake/t", s3) == {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_ENDPOINT_URL": "http://h:1",
        "AWS_REGION": "r",
        "AWS_ALLOW_HTTP": "true",
    }
    assert library_options("s3://lake/t", {"anon": True}) == {"AWS_SKIP_SIGNATURE": "true"}
    assert library_options("gs://lake/t", {"token": "/key.json"}) == {"GOOGLE_SERVICE_ACCOUNT": "/key.json"}
    assert library_options("abfss://c@a/t", {"account_key": "k"}) == {"AZURE_STORAGE_ACCOUNT_KEY": "k"}
    assert library_options("file:///t", {"auto_mkdir": True}) == {}


@pytest.mark.parametrize("name", ["AWS_S3_ALLOW_UNSAFE_RENAME", "allow_unsafe_rename"])
def test_commits_that_two_writers_can_win_are_refused(path, name):
    with pytest.raises(InvalidConfigurationError, match="found AWS_S3_ALLOW_UNSAFE_RENAME"):
        DeltaAttempt(path, 1, delta_options={name: "true"}).open()
    DeltaAttempt(path, 1, delta_options={name: "false"}).open()


def test_commits_that_two_writers_can_win_by_the_environment_are_refused(path, monkeypatch):
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
    with pytest.raises(InvalidConfigurationError, match="remove it"):
        DeltaAttempt(path, 1).open()


def test_a_table_that_cannot_be_written_is_told_before_any_work(tmp_path):
    (tmp_path / "table").write_text("a file")
    with pytest.raises(StorageError):
        DeltaAttempt(f"file://{tmp_path}/table", 1).open()


# Rules of tables


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        ({"delta.enableDeletionVectors": "true"}, "deletion vectors"),
        ({"delta.columnMapping.mode": "name"}, "column mapping"),
        ({"delta.setTransactionRetentionDuration": "interval 7 days"}, "expires the records of committed checkpoints"),
    ],
)
def test_a_table_whose_rules_plain_files_break_is_refused(path, configuration, message):
    DeltaTable.create(path, SCHEMA, configuration=configuration)
    with pytest.raises(EnvironmentNotReadyError, match=message):
        DeltaAttempt(path, 1).open()


def test_a_table_with_a_constraint_is_refused(path):
    DeltaTable.create(path, SCHEMA).alter.add_constraint({"positive": "key > 0"})
    with pytest.raises(EnvironmentNotReadyError, match=r"the constraint delta\.constraints\.positive"):
        DeltaAttempt(path, 1).open()


@pytest.mark.parametrize(
    ("rule", "expression"),
    [("delta.generationExpression", "key > 0"), ("delta.invariants", '{"expression": {"expression": "key > 0"}}')],
)
def test_a_table_with_a_column_that_has_a_rule_is_refused(path, rule, expression):
    fields = [Field("key", PrimitiveType("long")), Field("name", PrimitiveType("string"), metadata={rule: expression})]
    DeltaTable.create(path, Schema(fields))
    with pytest.raises(EnvironmentNotReadyError, match="the column 'name'"):
        DeltaAttempt(path, 1).open()


def test_a_rule_that_comes_between_two_commits_is_seen(path):
    attempt = DeltaAttempt(path, 1).open()
    attempt.add(1, 1)
    table_at(path).alter.add_constraint({"positive": "key > 0"})
    with pytest.raises(EnvironmentNotReadyError, match="positive"):
        attempt.add(2, 2)
    assert keys_of(path) == [1]


# Columns


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (pa.schema([("key", pa.int32()), ("name", pa.string())]), "column 'key' is int64 in the table and int32 here"),
        (WIDER, r"the table has no column 'price' \(merge_schema=True adds it\)"),
    ],
)
def test_an_output_that_does_not_fit_the_table_is_refused(path, schema, message):
    DeltaTable.create(path, SCHEMA)
    with pytest.raises(UnsupportedStateError, match=message):
        DeltaAttempt(path, 1, schema=schema).open()


def test_an_output_that_may_have_null_where_the_table_may_not_is_refused(path):
    DeltaTable.create(path, pa.schema([pa.field("key", pa.int64(), nullable=False), ("name", pa.string())]))
    with pytest.raises(UnsupportedStateError, match="column 'key' is not nullable in the table and is nullable here"):
        DeltaAttempt(path, 1).open()
    with pytest.raises(UnsupportedStateError, match="column 'key' of the table is not nullable and is not written"):
        DeltaAttempt(path, 1, schema=pa.schema([("name", pa.string())])).open()


def test_columns_that_the_output_lacks_are_null(path):
    DeltaTable.create(path, WIDER)
    DeltaAttempt(path, 1).open().add(1, 1)
    assert rows_of(path).to_pylist() == [{"key": 1, "name": "name 1", "price": None}]


def test_new_columns_are_added_to_the_table_if_told_so(path):
    DeltaAttempt(path, 1).open().add(1, 1)
    second = DeltaAttempt(path, 2, restored=1, restored_epoch=1, schema=WIDER, merge_schema=True).open()
    assert rows_of(path).schema.names == ["key", "name"]
    writer = second.task(schema=WIDER)
    writer.write(pa.table({"key": [2], "name": ["b"], "price": [1.5]}))
    second.commit(2, writer.prepare_commit())
    assert sorted(rows_of(path).column("price").to_pylist(), key=str) == [1.5, None]


def test_a_new_column_that_may_not_be_null_is_refused(path):
    DeltaTable.create(path, SCHEMA)
    wider = pa.schema([*SCHEMA, pa.field("price", pa.float64(), nullable=False)])
    with pytest.raises(UnsupportedStateError, match="column 'price' is new and not nullable"):
        DeltaAttempt(path, 1, schema=wider, merge_schema=True).open()


def test_columns_that_somebody_changes_between_two_commits_are_looked_at_again(path):
    attempt = DeltaAttempt(path, 1).open()
    written = attempt.write(1)
    text = PrimitiveType("string")
    not_null = [Field("key", PrimitiveType("long")), Field("name", text), Field("more", text, nullable=False)]
    DeltaTable.create(path, Schema(not_null), mode="overwrite")
    with pytest.raises(UnsupportedStateError, match="column 'more' of the table is not nullable"):
        attempt.commit(1, written)


def test_other_partitions_than_those_of_the_table_are_refused(path):
    DeltaTable.create(path, SCHEMA, partition_by=["name"])
    with pytest.raises(UnsupportedStateError, match="partitioned by name and the sink by nothing"):
        DeltaAttempt(path, 1).open()


def test_partitions_of_types_without_a_text_are_refused(path):
    schema = pa.schema([("key", pa.int64()), ("part", pa.float64())])
    with pytest.raises(UnsupportedStateError, match="integers, strings, dates or booleans"):
        DeltaAttempt(path, 1, schema=schema, partition_by=["part"]).open()


@pytest.mark.parametrize(
    "kind",
    [
        pa.uint8(),
        pa.null(),
        pa.time64("us"),
        pa.duration("us"),
        pa.float16(),
        pa.timestamp("ns"),
        pa.timestamp("us", "Europe/Berlin"),
        pa.decimal256(50, 1),
        pa.list_(pa.uint8()),
    ],
)
def test_types_that_delta_has_not_are_refused(path, kind):
    with pytest.raises(UnsupportedStateError, match=r"type of Delta tables for the column 'a(\.element)?'"):
        DeltaAttempt(path, 1, schema=pa.schema([("a", kind)])).open()


def test_columns_that_differ_in_their_case_only_are_refused(path):
    with pytest.raises(UnsupportedStateError, match=r"different names .* found \['KEY', 'key'\]"):
        DeltaAttempt(path, 1, schema=pa.schema([("key", pa.int64()), ("KEY", pa.int64())])).open()


def test_tasks_of_one_checkpoint_that_disagree_are_refused(path):
    attempt = DeltaAttempt(path, 1, schema=None).open()
    with pytest.raises(UnsupportedStateError, match="all tasks of a checkpoint to write the same columns"):
        attempt.commit(1, [*attempt.write(1), *attempt.write(2, schema=SCHEMA.remove(1))])


@pytest.mark.parametrize(
    "name", ["_delta_log/0.json", "other.parquet", "_statecheck/abc/x", "statecheck-a/../x.parquet", ""]
)
def test_no_file_of_others_can_be_changed(path, name):
    files = DeltaFiles.open(path, "0123456789ab", {})
    with pytest.raises(CoordinatorError, match="no file was changed"):
        files.delete(name)
