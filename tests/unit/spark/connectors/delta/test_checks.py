"""Settings, tables and columns that a Delta sink refuses before any work."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import ArrayType, MapType, PrimitiveType, StructType

from airflow_provider_statecheck.exceptions import (
    CoordinatorError,
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    StorageError,
    UnfitOutputError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.spark.connectors.delta.sink import DeltaSink
from airflow_provider_statecheck.spark.connectors.exactly_once.target_files import TargetFiles
from airflow_provider_statecheck.spark.stages.executor.elements import table_of as table_of_elements
from airflow_provider_statecheck.testing.sink_contract import SCHEMA, table_of
from tests.unit.spark.connectors.delta.attempts import DeltaAttempt, keys_of, rows_of, table_at

WIDER = pa.schema([*SCHEMA, pa.field("price", pa.float64())])
NUMBER, TEXT = PrimitiveType("long"), PrimitiveType("string")
ZONELESS = pa.timestamp("us")
NOT_NULL = pa.schema([pa.field("key", pa.int64(), nullable=False), ("name", pa.string())])


def with_part(*, nullable: bool) -> pa.Schema:
    return pa.schema([*SCHEMA, ("s", pa.struct([pa.field("a", pa.int32(), nullable=nullable)]))])


def in_lists(*, nullable: bool) -> pa.Schema:
    return pa.schema([*SCHEMA, ("s", pa.list_(with_part(nullable=nullable).field("s").type))])


def test_options_are_never_shown_and_those_of_deltalake_stay_on_the_driver(path):
    attempt = DeltaAttempt(path, 1, storage_options={"auto_mkdir": True}, delta_options={"x": "secret-1"}).open()
    assert "secret" not in repr(vars(attempt.sink))
    assert b"secret-1" not in pickle.dumps(attempt.sink)
    assert repr(DeltaSink("s3://name:password@lake/t")) == "DeltaSink('s3://***@lake/t')"


@pytest.mark.parametrize("name", ["AWS_S3_ALLOW_UNSAFE_RENAME", "allow_unsafe_rename"])
def test_unsafe_renames_are_refused(path, name, monkeypatch):
    with pytest.raises(InvalidConfigurationError, match="found AWS_S3_ALLOW_UNSAFE_RENAME"):
        DeltaAttempt(path, 1, delta_options={name: "true"}).open()
    DeltaAttempt(path, 1, delta_options={name: "false"}).open()
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
    with pytest.raises(InvalidConfigurationError, match="remove it"):
        DeltaAttempt(path, 2).open()


def test_target_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "table").write_text("a file")
    with pytest.raises(StorageError):
        DeltaAttempt(f"file://{tmp_path}/table", 1).open()


def test_missing_package_is_named_with_its_extra(path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "deltalake", None)
    with pytest.raises(EnvironmentNotReadyError, match=r"airflow-provider-statecheck\[delta\]"):
        DeltaAttempt(path, 1).open()


@pytest.mark.parametrize(
    "name", ["_delta_log/0.json", "other.parquet", "_statecheck/abc/x", "statecheck-a/../x.parquet", ""]
)
def test_files_of_other_writers_cannot_be_changed(path, name):
    with pytest.raises(CoordinatorError, match="no file was changed"):
        TargetFiles.open(path, "0123456789ab", {}).delete(name)


# Tables


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        ({"delta.enableDeletionVectors": "true"}, "deletion vectors"),
        ({"delta.columnMapping.mode": "name"}, "column mapping"),
        ({"delta.setTransactionRetentionDuration": "interval 7 days"}, "expires the records of committed checkpoints"),
    ],
)
def test_table_with_unsupported_features_is_refused(path, configuration, message):
    DeltaTable.create(path, SCHEMA, configuration=configuration)
    with pytest.raises(EnvironmentNotReadyError, match=message):
        DeltaAttempt(path, 1).open()


@pytest.mark.parametrize(
    ("rule", "expression"),
    [("delta.generationExpression", "key > 0"), ("delta.invariants", '{"expression": {"expression": "key > 0"}}')],
)
def test_table_with_a_computed_or_checked_column_is_refused(path, rule, expression):
    DeltaTable.create(path, Schema([Field("key", NUMBER), Field("name", TEXT, metadata={rule: expression})]))
    with pytest.raises(EnvironmentNotReadyError, match="the column 'name'"):
        DeltaAttempt(path, 1).open()


NESTS: dict[str, Any] = {
    "s.x": lambda field: StructType([field]),
    "s.element.x": lambda field: ArrayType(StructType([field]), contains_null=True),
    "s.value.x": lambda field: MapType(TEXT, StructType([field]), value_contains_null=True),
    "s.x.x": lambda field: StructType([Field("x", StructType([field]))]),
}
VALUES: dict[str, Any] = {
    "s.x": lambda value: {"x": value},
    "s.element.x": lambda value: [{"x": "a"}, {"x": value}],
    "s.value.x": lambda value: [("k", {"x": value})],
    "s.x.x": lambda value: {"x": {"x": value}},
}


@pytest.mark.parametrize("name", list(NESTS))
@pytest.mark.parametrize("rule", ["delta.generationExpression", "delta.invariants"])
def test_table_with_a_computed_or_checked_part_of_a_column_is_refused(path, name, rule):
    kind = NESTS[name](Field("x", NUMBER, metadata={rule: '{"expression": {"expression": "s.x > 0"}}'}))
    DeltaTable.create(path, Schema([Field("key", NUMBER), Field("s", kind)]))
    with pytest.raises(EnvironmentNotReadyError, match=f"the column '{name}'"):
        DeltaAttempt(path, 1).open()


def refused_and_stored(path, field, values, shown, **settings):
    """Write the values but the last one, which is too long, to a table with a column of Spark's limited texts."""
    DeltaTable.create(path, Schema([Field("key", NUMBER), field]))
    kind = pa.schema(DeltaTable(path).schema().to_arrow()).field(field.name).type
    rows = pa.table({"key": pa.array(range(len(values)), pa.int64()), field.name: pa.array(values, kind)})
    attempt = DeltaAttempt(path, 1, schema=rows.schema, **settings).open()
    with pytest.raises(UnfitOutputError, match=f"column '{shown}' has 1 value of more than 3 characters"):
        attempt.write_table(rows)
    attempt.commit(1, attempt.write_table(rows.slice(0, len(values) - 1)))
    assert len(keys_of(path)) == len(values) - 1


@pytest.mark.parametrize("declared", ["varchar(3)", "char(3)"])
@pytest.mark.parametrize("settings", [{}, {"upsert_by": ["key"], "merge_schema": True}], ids=["append", "upsert"])
def test_texts_that_are_too_long_for_the_type_that_spark_declared_are_refused(path, declared, settings):
    field = Field("name", TEXT, metadata={"__CHAR_VARCHAR_TYPE_STRING": declared})
    refused_and_stored(path, field, ["äöü", None, "", "abcdef"], "name", **settings)


@pytest.mark.parametrize(
    ("kind", "declared", "values", "shown"),
    [
        (ArrayType(TEXT, contains_null=True), "array<varchar(3)>", [["abc"], None, ["a", "abcd"]], "s.element"),
        (
            MapType(TEXT, TEXT, value_contains_null=True),
            "map<char(3),string>",
            [[("abc", "longer")], [("abcd", "a")]],
            "s.key",
        ),
        (
            StructType([Field("d", PrimitiveType("decimal(10,2)")), Field("x", ArrayType(TEXT, contains_null=True))]),
            "struct<d:decimal(10,2),x:array<varchar(3)>>",
            [{"d": None, "x": ["abc"]}, {"d": None, "x": ["abcd"]}],
            "s.x.element",
        ),
    ],
    ids=["list", "map", "struct"],
)
def test_parts_that_are_too_long_for_the_type_that_spark_declared_are_refused(path, kind, declared, values, shown):
    refused_and_stored(path, Field("s", kind, metadata={"__CHAR_VARCHAR_TYPE_STRING": declared}), values, shown)


@pytest.mark.parametrize("name", list(NESTS))
def test_the_declared_length_of_a_part_is_that_of_its_own_field_too(path, name):
    field = Field("x", TEXT, metadata={"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"})
    values = [VALUES[name]("abc"), VALUES[name]("abcd")]
    refused_and_stored(path, Field("s", NESTS[name](field)), values, name)


def test_constraint_is_noticed_between_two_commits_and_when_a_table_is_opened(path):
    attempt = DeltaAttempt(path, 1).open()
    attempt.add(1, 1)
    table_at(path).alter.add_constraint({"positive": "key > 0"})
    for refused in (lambda: attempt.add(2, 2), DeltaAttempt(path, 2, restored=1).open):
        with pytest.raises(EnvironmentNotReadyError, match=r"the constraint delta\.constraints\.positive"):
            refused()
    assert keys_of(path) == [1]


# Columns


@pytest.mark.parametrize(
    ("table", "output", "settings", "message"),
    [
        (SCHEMA, SCHEMA.set(0, pa.field("key", pa.int32())), {}, "column 'key' is int64 there and int32 here"),
        (SCHEMA, WIDER, {}, "column 'price' is new. .* set merge_schema=True"),
        (SCHEMA, pa.schema([("Key", pa.int64())]), {"merge_schema": True}, "column 'key' is 'Key' here"),
        (NOT_NULL, SCHEMA.remove(0), {}, "column 'key' is missing here"),
        (SCHEMA, SCHEMA, {"partition_by": ["name"]}, "partitioned by nothing and the sink by name"),
        (SCHEMA, WIDER, {"partition_by": ["price"], "merge_schema": True}, "integers, strings, dates or booleans"),
        (SCHEMA, pa.schema([("a", pa.uint8())]), {}, "type of Delta tables for the column 'a'"),
        (SCHEMA, pa.schema([*SCHEMA, ("KEY", pa.int64())]), {}, r"different names .* found \['KEY', 'key'\]"),
        (with_part(nullable=False), with_part(nullable=True), {}, r"'s\.a' can be null here and not there"),
        (in_lists(nullable=False), in_lists(nullable=True), {}, r"'s\.element\.a' can be null here and not there"),
    ],
)
def test_output_that_does_not_fit_the_table_is_refused(path, table, output, settings, message):
    DeltaTable.create(path, table)
    with pytest.raises(UnsupportedStateError, match=message):
        DeltaAttempt(path, 1, schema=output, **settings).open()


def test_column_that_cannot_be_null_takes_values_and_refuses_null_before_the_checkpoint(path):
    DeltaTable.create(path, NOT_NULL)
    attempt = DeltaAttempt(path, 1).open()
    attempt.add(1, 1)
    assert keys_of(path) == [1]
    with pytest.raises(UnsupportedStateError, match=r"column 'key', which cannot be null .* null in 1 row;"):
        attempt.write_table(pa.table({"key": pa.array([None], pa.int64()), "name": ["a"]}))


def test_null_struct_with_a_part_that_cannot_be_null_leaves_a_readable_table(path):
    schema = with_part(nullable=False)
    DeltaTable.create(path, schema)
    attempt = DeltaAttempt(path, 1, schema=schema).open()
    attempt.commit(1, attempt.write_table(table_of_elements([(1, "a", None), (2, "b", {"a": 3})], schema)))
    assert rows_of(path).column("s").to_pylist() == [None, {"a": 3}]


def test_output_that_is_never_null_makes_no_column_that_cannot_be_null(path):
    first = DeltaAttempt(path, 1, schema=NOT_NULL).open()
    first.commit(1, first.write(1))
    wider = WIDER.set(2, WIDER.field(2).with_nullable(False))
    second = DeltaAttempt(path, 2, restored=1, schema=wider, merge_schema=True).open()
    second.commit(2, second.write_table(pa.table({"key": [2], "name": ["b"], "price": [1.5]})))
    assert all(field.nullable for field in rows_of(path).schema)
    assert keys_of(path) == [1, 2]


def test_columns_that_the_output_lacks_are_null(path):
    DeltaTable.create(path, WIDER)
    DeltaAttempt(path, 1).open().add(1, 1)
    assert rows_of(path).to_pylist() == [{"key": 1, "name": "name 1", "price": None}]


def test_new_columns_are_added_by_the_first_commit_that_has_them(path):
    DeltaAttempt(path, 1).open().add(1, 1)
    second = DeltaAttempt(path, 2, restored=1, schema=WIDER, merge_schema=True).open()
    assert rows_of(path).schema.names == ["key", "name"]
    second.commit(2, second.write_table(pa.table({"key": [2], "name": ["b"], "price": [1.5]})))
    assert sorted(rows_of(path).column("price").to_pylist(), key=str) == [1.5, None]


def test_columns_that_another_writer_changes_between_two_commits_are_noticed(path):
    attempt = DeltaAttempt(path, 1).open()
    written = attempt.write(1)
    columns = [Field("key", NUMBER), Field("name", TEXT), Field("more", TEXT, nullable=False)]
    DeltaTable.create(path, Schema(columns), mode="overwrite")
    with pytest.raises(UnsupportedStateError, match="column 'more' is missing here"):
        attempt.commit(1, written)


def test_tasks_of_one_checkpoint_with_different_columns_are_refused(path):
    attempt = DeltaAttempt(path, 1, schema=None).open()
    other = attempt.write_table(table_of([2]).select(["key"]), 1)
    with pytest.raises(UnsupportedStateError, match="all tasks of a checkpoint to write the same columns"):
        attempt.commit(1, [*attempt.write(1), *other])


MOMENTS_IN_MAPS = pa.table(
    {
        "key": [2],
        "moments": pa.array([[("a", [0])]], pa.map_(pa.string(), pa.list_(ZONELESS))),
    }
)


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("settings", [{}, {"upsert_by": ["key"]}])
@pytest.mark.parametrize("other", [ZONELESS, pa.list_(ZONELESS), pa.struct([("x", ZONELESS)])])
def test_times_without_a_zone_in_maps_are_stored_beside_others(path, other, settings, is_known):
    table = MOMENTS_IN_MAPS.append_column("other", pa.nulls(1, other))
    attempt = DeltaAttempt(path, 1, schema=table.schema if is_known else None, **settings).open()
    attempt.commit(1, attempt.write_table(table))
    assert rows_of(path).select(table.column_names).to_pylist() == table.to_pylist()


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("settings", [{}, {"upsert_by": ["key"]}])
def test_times_without_a_zone_in_maps_alone_are_refused_before_the_table_exists(path, settings, is_known):
    """deltalake would declare no feature for them, and no reader opens the table that it leaves."""
    attempt = DeltaAttempt(path, 1, schema=MOMENTS_IN_MAPS.schema if is_known else None, **settings)
    with pytest.raises(UnsupportedStateError, match="timestamp_ntz in maps of the columns 'moments'"):
        attempt.open().commit(1, attempt.write_table(MOMENTS_IN_MAPS))
    assert not DeltaTable.is_deltatable(path)


@pytest.mark.parametrize("has_feature", [True, False])
def test_times_without_a_zone_in_maps_are_added_to_tables_with_their_feature(path, has_feature):
    DeltaTable.create(path, pa.schema([("key", pa.int64()), *([("other", ZONELESS)] if has_feature else [])]))
    attempt = DeltaAttempt(path, 1, schema=None, merge_schema=True).open()
    written = attempt.write_table(MOMENTS_IN_MAPS)
    if has_feature:
        attempt.commit(1, written)
        assert rows_of(path).column("moments").to_pylist() == MOMENTS_IN_MAPS.column("moments").to_pylist()
        return
    with pytest.raises(UnsupportedStateError, match="timestamp_ntz in maps of the columns 'moments'"):
        attempt.commit(1, written)
    assert rows_of(path).num_rows == 0
