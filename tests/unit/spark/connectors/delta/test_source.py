"""A Delta table as a source without Spark: what it plans, and what it notices."""

from __future__ import annotations

import datetime as dt
import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema, VariantType, write_deltalake

from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    InvalidConfigurationError,
    SourceChangedError,
    SourceRestartRequiredError,
    StateCheckError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.spark.connectors.delta import table_files as delta_files
from airflow_provider_statecheck.spark.connectors.delta.source import DeltaSource
from airflow_provider_statecheck.spark.connectors.delta.table_files import DataFile
from airflow_provider_statecheck.spark.connectors.enumerator import SMALLEST_TARGET_BYTES
from airflow_provider_statecheck.spark.connectors.files.source import ParquetSource
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.unit.spark.connectors.delta.attempts import DeltaAttempt
from tests.unit.spark.connectors.runs import increments_of, state_of

NO_SPARK: Any = None


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "table")


@pytest.fixture
def source(path):
    return lambda **named: DeltaSource(path, **{"files_per_increment": 1, **named})


def rows(*keys, day=None):
    columns = {"key": list(keys)} if day is None else {"key": list(keys), "day": [day] * len(keys)}
    return pa.table(columns)


def append(path, *keys, **options):
    write_deltalake(path, rows(*keys), mode="append", **options)


def keys_of(path, increment):
    import pyarrow.parquet as pq

    files = [DataFile.of(split.item).path for split in increment.splits]
    return sorted(key for file in files for key in pq.ParquetFile(f"{path}/{file}").read(["key"]).column(0).to_pylist())


def planned(path, enumerator):
    return [keys_of(path, increment) for increment in iter(enumerator.next_increment, None)]


def seen(path, enumerator):
    return sorted(key for keys in planned(path, enumerator) for key in keys)


def finished(source):
    """The state of a run that has read everything."""
    enumerator = source.open(None)
    for increment in iter(enumerator.next_increment, None):
        enumerator.finish(increment)
    return state_of(enumerator)


# One run


def test_a_run_reads_the_table_at_the_version_at_which_it_began(path, source):
    append(path, 1)
    append(path, 2)
    write_deltalake(path, rows(3), mode="overwrite")
    append(path, 4)
    assert seen(path, source().open(None)) == [3, 4]


def test_what_was_written_first_is_read_first(path, source):
    for key in range(8):
        append(path, key)
    assert planned(path, source().open(None)) == [[key] for key in range(8)]


def test_files_go_into_increments_by_their_number_and_their_bytes(path, source):
    for key in range(4):
        append(path, key)
    assert [len(keys) for keys in planned(path, source().open(None))] == [1, 1, 1, 1]
    assert [len(keys) for keys in planned(path, source(files_per_increment=3).open(None))] == [3, 1]
    by_bytes = source(files_per_increment=None, bytes_per_increment=1).open(None)
    assert [len(keys) for keys in planned(path, by_bytes)] == [1, 1, 1, 1]
    automatic = DeltaSource(path).open(NO_SPARK)
    assert [len(keys) for keys in planned(path, automatic)] == [4]
    assert automatic.snapshot()["target_bytes"] == SMALLEST_TARGET_BYTES


def test_a_restored_attempt_reads_the_rest_of_the_same_version(path, source):
    append(path, 1)
    append(path, 2)
    enumerator = source().open(None)
    first = enumerator.next_increment()
    enumerator.finish(first)
    write_deltalake(path, rows(3), mode="overwrite")

    again = source().open(None, state_of(enumerator))
    following = again.next_increment()
    assert following.number == 2
    assert sorted([*keys_of(path, first), *keys_of(path, following)]) == [1, 2]
    assert again.next_increment() is None


def test_a_restored_attempt_needs_neither_the_log_nor_deltalake(path, source, tmp_path, monkeypatch):
    append(path, 1)
    state = state_of(source().open(None))
    (tmp_path / "table" / "_delta_log").rename(tmp_path / "away")
    monkeypatch.setitem(__import__("sys").modules, "deltalake", None)
    assert seen(path, source().open(None, state)) == [1]


def test_a_file_that_vacuum_deleted_under_a_run_is_told(path, source):
    append(path, 1)
    enumerator = source().open(None)
    increment = enumerator.next_increment()
    enumerator.require_unchanged(increment)
    write_deltalake(path, rows(2), mode="overwrite")
    DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(SourceChangedError, match="vanished"):
        enumerator.require_unchanged(increment)
    with pytest.raises(SourceRestartRequiredError, match="vanished"):
        source(on_change="restart").open(None, state_of(enumerator)).require_unchanged(increment)


# The next run


def test_a_new_run_reads_what_was_added_since(path, source):
    append(path, 1)
    state = finished(source())
    append(path, 2)
    append(path, 3)

    assert source().open(None, state, new_run=True).next_increment().number == 2
    enumerator = source().open(None, state, new_run=True)
    assert planned(path, enumerator) == [[2], [3]]
    assert enumerator.snapshot()["reader"]["version"] == 2


def test_many_versions_are_read_in_their_order(path, source, monkeypatch):
    monkeypatch.setattr(delta_files, "VERSIONS_PER_READ", 2)
    append(path, 0)
    state = finished(source())
    for key in range(1, 6):
        append(path, key)
    assert planned(path, source().open(None, state, new_run=True)) == [[1], [2], [3], [4], [5]]


def test_a_new_run_remembers_only_what_is_left(path, source):
    for key in range(5):
        append(path, key)
    state = finished(source())
    append(path, 5)
    assert source().open(None, state, new_run=True).total_splits == 1


def test_files_that_are_only_written_together_are_no_new_rows(path, source):
    append(path, 1)
    append(path, 2)
    state = finished(source())
    DeltaTable(path).optimize.compact()
    append(path, 3)
    assert seen(path, source().open(None, state, new_run=True)) == [3]


def test_new_files_that_were_written_together_meanwhile_are_read_as_they_were_added(path, source):
    append(path, 1)
    state = finished(source())
    append(path, 2)
    append(path, 3)
    DeltaTable(path).optimize.compact()
    assert seen(path, source().open(None, state, new_run=True)) == [2, 3]


def test_rows_that_came_and_changed_between_two_runs_are_read_as_they_are(path, source):
    append(path, 1)
    state = finished(source())
    append(path, 2, 3)
    DeltaTable(path).delete("key = 2")
    assert seen(path, source().open(None, state, new_run=True)) == [3]


def change_by_delete(path):
    DeltaTable(path).delete("key = 1")


def change_by_update(path):
    DeltaTable(path).update(updates={"key": "key + 100"}, predicate="key = 1")


def change_by_overwrite(path):
    write_deltalake(path, rows(7), mode="overwrite")


CHANGES = [change_by_delete, change_by_update, change_by_overwrite]


@pytest.mark.parametrize(
    ("on_change", "error", "message"),
    [
        ("fail", SourceChangedError, r"since version 0, .* changed or deleted by version 2"),
        ("restart", SourceRestartRequiredError, "changed or deleted"),
    ],
)
@pytest.mark.parametrize("change", CHANGES)
def test_rows_that_were_read_and_have_changed_fail_the_next_run(path, source, change, on_change, error, message):
    append(path, 1, 2)
    state = finished(source())
    append(path, 3)
    change(path)
    with pytest.raises(error, match=message):
        source(on_change=on_change).open(None, state, new_run=True)


@pytest.mark.parametrize("change", CHANGES)
def test_versions_that_change_rows_are_passed_over_if_told_so(path, source, change):
    append(path, 1, 2)
    state = finished(source())
    change(path)
    append(path, 4)
    assert seen(path, source(on_change="ignore").open(None, state, new_run=True)) == [4]


def test_rows_that_a_delta_sink_replaced_are_noticed(path, source):
    first = DeltaAttempt(f"file://{path}", 1).open()
    first.add(1, 1)
    state = finished(source())
    first.add(2, 2)
    assert seen(path, source().open(None, state, new_run=True)) == [2]
    DeltaAttempt(f"file://{path}", 2, generation=2).open().add(1, 10)
    with pytest.raises(SourceChangedError, match="changed or deleted"):
        source().open(None, state, new_run=True)


@pytest.mark.parametrize("on_change", ["fail", "ignore"])
def test_versions_that_are_not_kept_any_more_are_told(path, source, tmp_path, on_change):
    append(path, 1)
    state = finished(source())
    append(path, 2)
    append(path, 3)
    DeltaTable(path).create_checkpoint()
    (tmp_path / "table" / "_delta_log" / f"{1:020d}.json").unlink()
    with pytest.raises(SourceChangedError, match="log of version 1 was deleted"):
        source(on_change=on_change).open(None, state, new_run=True)


def test_a_table_that_was_made_anew_is_told(path, source, tmp_path):
    append(path, 1)
    state = finished(source())
    (tmp_path / "table").rename(tmp_path / "away")
    append(path, 2)
    append(path, 3)
    with pytest.raises(SourceChangedError, match="it was recreated"):
        source().open(None, state, new_run=True)


def instants(*texts):
    hours = [dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC) for text in texts]
    return pa.table({"key": list(range(len(hours))), "at": pa.array(hours, pa.timestamp("us", "UTC"))})


@pytest.mark.parametrize("told", ["2024-01-01 10:00:00", "2024-01-01T10:00:00.000000Z", "2024-01-01 11:00:00+01:00"])
def test_an_instant_of_a_partition_is_the_same_in_a_first_and_in_a_later_run(path, source, tmp_path, told):
    write_deltalake(path, instants("2024-01-01T10:00:00"), partition_by=["at"])
    write_deltalake(path, instants("2024-01-01T09:00:00"), mode="append")
    log = tmp_path / "table" / "_delta_log" / f"{1:020d}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["partitionValues"]["at"] = told
    log.write_text("\n".join(json.dumps(action) for action in actions))
    for starting_version in (None, 1):
        enumerator = source(starting_version=starting_version).open(None)
        increments = increments_of(enumerator)
        values = [DataFile.of(split.item).values["at"] for each in increments for split in each.splits]
        assert {dt.datetime.fromisoformat(value or "") for value in values} == {
            dt.datetime(2024, 1, 1, 10, tzinfo=dt.UTC)
        }


def test_a_time_of_a_partition_that_is_no_instant_gets_no_zone(path, source):
    at = pa.array([dt.datetime(2024, 1, 1, 10)], pa.timestamp("us"))  # noqa: DTZ001
    write_deltalake(path, pa.table({"key": [1], "at": at}), partition_by=["at"])
    for starting_version in (None, 0):
        increment = source(starting_version=starting_version).open(None).next_increment()
        value = DataFile.of(increment.splits[0].item).values["at"]
        assert dt.datetime.fromisoformat(value or "").tzinfo is None


# Where to begin


def test_the_first_run_may_begin_at_a_version(path, source):
    for key in (1, 2, 3):
        append(path, key)
    assert seen(path, source(starting_version=1).open(None)) == [2, 3]
    assert seen(path, source(starting_version=3).open(None)) == []


def test_a_version_that_is_not_there_yet_or_any_more_is_no_beginning(path, source, tmp_path):
    append(path, 1)
    append(path, 2)
    with pytest.raises(InvalidConfigurationError, match=r"at most 2 .* found 3"):
        source(starting_version=3).open(None)
    DeltaTable(path).create_checkpoint()
    (tmp_path / "table" / "_delta_log" / f"{0:020d}.json").unlink()
    with pytest.raises(InvalidConfigurationError, match="version 0 was deleted"):
        source(starting_version=0).open(None)


def test_versions_of_the_beginning_that_change_rows_are_told_or_passed_over(path, source):
    append(path, 1, 2)
    DeltaTable(path).delete("key = 1")
    append(path, 3)
    with pytest.raises(SourceChangedError, match=r"from version 1 on, .* version 1.*Start after these versions"):
        source(starting_version=1, on_change="restart").open(None)
    assert seen(path, source(starting_version=1, on_change="ignore").open(None)) == [3]


@pytest.mark.parametrize("text", ["one\u2028two", "one\u2029two", "one\x85two", "one\x0btwo\x1c", "one\r\ntwo"])
def test_the_log_is_split_at_line_feeds_alone(path, source, text):
    write_deltalake(path, pa.table({"key": [1], "text": ["a"]}))
    state = finished(source())
    write_deltalake(path, pa.table({"key": [2], "text": [text]}), mode="append")
    assert planned(path, source().open(None, state, new_run=True)) == [[2]]


# What is refused


def test_where_there_is_no_table_nothing_is_read(path, source):
    with pytest.raises(InvalidConfigurationError, match="Expected a Delta table in file:///"):
        source().open(None)


@pytest.mark.parametrize(
    ("schema", "configuration", "found"),
    [
        (rows(1).schema, {"delta.columnMapping.mode": "name"}, "column mapping"),
        (Schema([Field("key", VariantType())]), {}, "columns of type variant"),
    ],
)
def test_a_table_whose_columns_are_not_those_of_its_files_is_refused(path, source, schema, configuration, found):
    DeltaTable.create(path, schema, configuration=configuration)
    with pytest.raises(UnsupportedStateError, match=found):
        source().open(None)


@pytest.mark.parametrize(
    ("feature", "found"),
    [
        ("typeWidening", "the table feature typeWidening"),
        ("variantShredding-preview", "the table feature variantShredding-preview"),
        ("catalogManaged", "catalog-managed table"),
        ("ofTheFuture", "Feature 'ofTheFuture' is not supported"),
    ],
)
def test_a_feature_that_is_not_known_is_refused_by_its_name(path, source, tmp_path, feature, found):
    write_deltalake(path, rows(1))
    change_log(tmp_path, protocol={"minReaderVersion": 3, "minWriterVersion": 7} | _features(feature))
    with pytest.raises(UnsupportedStateError, match=found):
        source().open(None)


@pytest.mark.parametrize(("kind", "found"), [("void", "columns of type void"), ("geometry(4326)", "type: 'geometry")])
def test_a_type_that_is_not_known_is_refused_by_its_name(path, source, tmp_path, kind, found):
    write_deltalake(path, rows(1))
    schema = {"type": "struct", "fields": [{"name": "key", "type": kind, "nullable": True, "metadata": {}}]}
    change_log(tmp_path, metaData={"schemaString": json.dumps(schema)})
    with pytest.raises(UnsupportedStateError, match=found):
        source().open(None)


def test_a_deletion_vector_that_is_missing_is_refused_as_one(path, source, tmp_path):
    write_deltalake(path, rows(1))
    vector = {
        "storageType": "u",
        "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
        "offset": 4,
        "sizeInBytes": 40,
        "cardinality": 1,
    }
    features = _features("deletionVectors")
    change_log(
        tmp_path,
        protocol={"minReaderVersion": 3, "minWriterVersion": 7} | features,
        add={"deletionVector": vector},
    )
    with pytest.raises(UnsupportedStateError, match="found deletion vectors"):
        source().open(None)


def _features(name):
    return {"readerFeatures": [name], "writerFeatures": [name]}


def change_log(tmp_path, **changes):
    """Change actions of the first version of the table, by their kinds."""
    log = tmp_path / "table" / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in log.read_text().split("\n") if line]
    for action in actions:
        for kind, change in changes.items():
            if kind in action:
                action[kind] |= change
    log.write_text("\n".join(map(json.dumps, actions)))


def test_a_table_that_may_have_deletion_vectors_and_has_none_is_read(path, source):
    DeltaTable.create(path, rows(1).schema, configuration={"delta.enableDeletionVectors": "true"})
    assert planned(path, source().open(None)) == []


def test_a_deletion_vector_is_refused(path, source, tmp_path):
    append(path, 1)
    state = finished(source())
    add = {"path": "x.parquet", "size": 1, "partitionValues": {}, "dataChange": True, "modificationTime": 0}
    vector = {"storageType": "u", "pathOrInlineDv": "ab", "sizeInBytes": 1, "cardinality": 1}
    action = json.dumps({"add": {**add, "deletionVector": vector}})
    (tmp_path / "table" / "_delta_log" / f"{1:020d}.json").write_text(action)
    with pytest.raises(UnsupportedStateError, match="deletion vectors"):
        source().open(None, state, new_run=True)


def test_the_state_of_another_source_is_refused(path, source, tmp_path):
    append(path, 1)
    other = state_of(ParquetSource(path, schema="key bigint").open(NO_SPARK))
    with pytest.raises(
        CorruptStateError, match="position in a Delta table, found invalid data or those of another source"
    ):
        source().open(None, other)


def test_options_are_hidden_and_go_with_the_source(monkeypatch):
    source = DeltaSource("s3://name:password@lake/t", storage_options={"secret": "hush-hush"})
    assert repr(source) == "DeltaSource('s3://***@lake/t')"
    assert "hush" not in repr(vars(source))

    def opened(_, **options):
        raise LookupError(options)

    monkeypatch.setattr(CheckpointStorage, "open", opened)
    with pytest.raises(LookupError) as asked:
        pickle.loads(pickle.dumps(source)).open(NO_SPARK)
    assert asked.value.args == ({"secret": "hush-hush"},)


def test_a_failing_storage_is_told_without_secrets(object_store):
    table = f"s3://{object_store.make_bucket()}/t"
    options = {**object_store.storage_options, "secret": "wrong-secret-of-mine"}
    with pytest.raises(StateCheckError) as found:
        DeltaSource(table, storage_options=options).open(NO_SPARK)
    assert "wrong-secret" not in str(found.value)


@pytest.mark.parametrize("value", ["a/b", "50%", "#", "x y", "ü", None])
def test_an_item_tells_its_file_and_the_values_of_its_partition(value):
    file = DataFile("a#b/c.parquet", 7, {"day": value, "x=y": "1"})
    assert DataFile.of(file.item) == file
