"""What runs read of an Iceberg table, whatever happened to it between them; without Spark."""

from __future__ import annotations

import json
import pickle
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import FileScanTask
from pyiceberg.typedef import Record

from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    SourceChangedError,
    SourceRestartRequiredError,
    StorageError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.spark.connectors.enumerator import decode_source_state
from airflow_provider_statecheck.spark.connectors.iceberg import source as iceberg_source
from airflow_provider_statecheck.spark.connectors.iceberg.source import (
    IcebergFileReader,
    IcebergRanges,
    IcebergSource,
    pack_shares,
)
from airflow_provider_statecheck.spark.connectors.iceberg.table import decode_data_file
from airflow_provider_statecheck.spark.connectors.source import OnChange
from airflow_provider_statecheck.spark.tables.schemas import read_tasks
from tests.unit.spark.connectors.iceberg.tables import (
    TABLE,
    append_as_somebody_else as append,
    create_table,
    properties_in,
    rows_of,
    table_in,
)
from tests.unit.spark.connectors.runs import state_of

SPARK: Any = None  # planning needs none


@pytest.fixture
def folder(tmp_path):
    create_table(tmp_path)
    return tmp_path


def source_of(folder, **settings):
    return IcebergSource(TABLE, properties=properties_in(folder), **settings)


def finish(enumerator):
    """Finish all increments and return the keys of each."""
    found = []
    while (increment := enumerator.next_increment()) is not None:
        found.append(sorted(keys_of(enumerator, increment)))
        enumerator.finish(increment)
    return found


def keys_of(enumerator, increment):
    return [key for batch in batches_of(enumerator, increment) for key in batch.column("key").to_pylist()]


def batches_of(enumerator, increment):
    reader = enumerator.reader
    files = reader.file_reader(increment.splits, reader.arrow_schema())
    return list(read_tasks(files, [pa.record_batch([pa.array([0])], names=["id"])]))


def run(folder, state=None, **settings):
    """Let a run read everything and return what it read, with its state."""
    new_run = state is not None
    enumerator = source_of(folder, **settings).open(SPARK, state, new_run=new_run)
    return finish(enumerator), state_of(enumerator)


def test_a_fresh_start_reads_the_table_as_it_is(folder):
    append(folder, 1, 2)
    append(folder, 3)
    assert run(folder)[0] == [[1, 2, 3]]
    assert sorted(run(folder, files_per_increment=1)[0]) == [[1, 2], [3]]


def test_rows_that_were_deleted_before_are_not_read(folder):
    append(folder, 1, 2)
    append(folder, 3)
    with table_in(folder) as table:
        table.delete("key = 1")
    assert run(folder)[0] == [[2, 3]]


def test_an_empty_table_gives_nothing_and_what_comes_later_belongs_to_the_next_run(folder):
    read, state = run(folder)
    assert read == []
    append(folder, 1)
    read, state = run(folder, state)
    assert read == [[1]]
    append(folder, 2)
    assert run(folder, state)[0] == [[2]]


def test_a_new_run_reads_what_was_appended_since_in_the_order_of_the_snapshots(folder):
    append(folder, 1)
    _, state = run(folder)
    for key in (5, 4, 3, 2):
        append(folder, key)
    read, state = run(folder, state, files_per_increment=1)
    assert read == [[5], [4], [3], [2]]
    assert run(folder, state)[0] == []


def test_a_retry_reads_the_same_files_whatever_was_appended_since(folder):
    append(folder, 1)
    append(folder, 2)
    source = source_of(folder, files_per_increment=1)
    first = source.open(SPARK)
    done = first.next_increment()
    first.finish(done)
    state, read = state_of(first), keys_of(first, done)
    append(folder, 3)
    second = source.open(SPARK, state)
    assert (second.finished_splits, second.total_splits) == (1, 2)
    assert finish(second) == [[3 - read[0]]]


def test_compaction_changes_no_rows_and_is_passed_over(folder, monkeypatch):
    from pyiceberg.table.snapshots import Operation

    append(folder, 1)
    _, state = run(folder)
    append(folder, 2)
    with table_in(folder) as table:
        transaction = table.transaction()
        producer = transaction.update_snapshot().overwrite()
        producer._operation = Operation.REPLACE
        for task in table.scan().plan_files():
            producer.delete_data_file(task.file)
            producer.append_data_file(task.file)
        monkeypatch.setattr("pyiceberg.table.snapshots.update_snapshot_summaries", lambda summary, previous: summary)
        monkeypatch.setattr("pyiceberg.table.update.snapshot.update_snapshot_summaries", _unchanged)
        producer.commit()
        transaction.commit_transaction()
        assert table.current_snapshot().summary.operation is Operation.REPLACE
    assert run(folder, state)[0] == [[2]]


def _unchanged(summary, previous_summary):
    return summary


def test_changed_rows_fail_a_new_run_unless_they_are_to_be_ignored(folder):
    append(folder, 1, 2)
    _, state = run(folder)
    append(folder, 3)
    with table_in(folder) as table:
        table.delete("key = 1")
    with pytest.raises(SourceChangedError, match=r"changed or deleted by 1 snapshot\(s\): \d+ \(overwrite\).*'ignore'"):
        run(folder, state)
    append(folder, 4)
    assert run(folder, state, on_change="ignore")[0] == [[3, 4]]


def test_a_retry_reads_rows_that_were_deleted_since_and_the_next_run_notices(folder):
    append(folder, 1, 2)
    state = state_of(source_of(folder).open(SPARK))
    with table_in(folder) as table:
        table.delete("key = 1")
    retry = source_of(folder).open(SPARK, state)
    assert finish(retry) == [[1, 2]]
    with pytest.raises(SourceChangedError):
        run(folder, state_of(retry))


def expire(folder, *snapshots):
    with table_in(folder) as table:
        table.maintenance.expire_snapshots().by_ids(list(snapshots)).commit()


def head_of(folder):
    with table_in(folder) as table:
        return table.current_snapshot().snapshot_id


def test_a_snapshot_that_was_forgotten_before_it_was_read_is_refused(folder):
    append(folder, 1)
    state, head = state_of(source_of(folder).open(SPARK)), head_of(folder)
    append(folder, 2)
    expire(folder, head)
    for choice in ("fail", "ignore"):
        with pytest.raises(SourceChangedError, match=f"snapshot {head} has expired"):
            source_of(folder, on_change=choice).open(SPARK, state)
    with pytest.raises(SourceRestartRequiredError):
        source_of(folder, on_change="restart").open(SPARK, state)


def test_a_snapshot_that_was_forgotten_after_it_was_read_is_not_missed(folder):
    append(folder, 1)
    (_, state), head = run(folder), head_of(folder)
    append(folder, 2)
    assert finish(source_of(folder).open(SPARK, state)) == []
    with table_in(folder) as table:
        # As others expire snapshots: those that follow still name it.
        kept = [snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id != head]
        table.metadata = table.metadata.model_copy(update={"snapshots": kept})
        ranges = IcebergRanges(table, TABLE, OnChange.FAIL)
        assert ranges.of_restarted_run(decode_source_state(state)).items == ()
        assert len(ranges.of_new_run(decode_source_state(state)).items) == 1


def begun_after_a_run(folder, *finished):
    """The state of a run that began after three appends, some of which it has read."""
    append(folder, 1)
    _, state = run(folder)
    snapshots = []
    for key in (2, 3, 4):
        append(folder, key)
        snapshots.append(head_of(folder))
    enumerator = source_of(folder, files_per_increment=1).open(SPARK, state, new_run=True)
    for key in finished:
        increment = enumerator.next_increment()
        assert keys_of(enumerator, increment) == [key]
        enumerator.finish(increment)
    return state_of(enumerator), snapshots


@pytest.mark.parametrize("new_run", [False, True])
@pytest.mark.parametrize("number", [0, 1])
def test_a_snapshot_that_was_forgotten_within_what_is_still_to_be_read_is_refused(folder, number, new_run):
    state, snapshots = begun_after_a_run(folder)
    expire(folder, snapshots[number])
    for choice in ("fail", "ignore"):
        with pytest.raises(SourceChangedError, match=rf"{number + 1} file\(s\) that are still to be read"):
            source_of(folder, on_change=choice).open(SPARK, state, new_run=new_run)
    with pytest.raises(SourceRestartRequiredError, match="still to be read"):
        source_of(folder, on_change="restart").open(SPARK, state, new_run=new_run)


def test_a_snapshot_that_others_forgot_within_what_is_still_to_be_read_is_refused(folder):
    state, snapshots = begun_after_a_run(folder, 2)
    with table_in(folder) as table:
        # As others expire snapshots: those that follow still name it.
        kept = [snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id != snapshots[1]]
        table.metadata = table.metadata.model_copy(update={"snapshots": kept})
        ranges = IcebergRanges(table, TABLE, OnChange.IGNORE)
        for plan in (ranges.of_restarted_run, ranges.of_new_run):
            with pytest.raises(SourceChangedError, match=r"1 file\(s\) that are still to be read"):
                plan(decode_source_state(state))


def test_a_snapshot_that_was_forgotten_within_a_run_after_its_files_were_read_is_not_missed(folder):
    state, snapshots = begun_after_a_run(folder, 2)
    expire(folder, snapshots[0])
    assert finish(source_of(folder, files_per_increment=1).open(SPARK, state)) == [[3], [4]]


def test_a_snapshot_that_nothing_names_any_more_is_missed(folder):
    append(folder, 1)
    (_, state), head = run(folder), head_of(folder)
    append(folder, 2)
    expire(folder, head)
    with pytest.raises(SourceChangedError, match=f"no longer includes snapshot {head}"):
        run(folder, state)


def test_a_table_that_no_longer_goes_back_to_what_was_read_is_refused(folder):
    append(folder, 1)
    first = head_of(folder)
    append(folder, 2)
    (_, state), second = run(folder), head_of(folder)
    with table_in(folder) as table:
        table.manage_snapshots().rollback_to_snapshot(first).commit()
    append(folder, 3)
    for choice in ("fail", "ignore"):
        with pytest.raises(SourceChangedError, match=f"no longer includes snapshot {second}"):
            run(folder, state, on_change=choice)


def test_a_starting_snapshot_leaves_out_what_was_there(folder):
    append(folder, 1)
    start = head_of(folder)
    append(folder, 2)
    read, state = run(folder, starting_snapshot=start)
    assert read == [[2]]
    append(folder, 3)
    assert run(folder, state, starting_snapshot=start)[0] == [[3]]


def test_a_starting_snapshot_that_is_not_there_is_refused(folder):
    append(folder, 1)
    with pytest.raises(InvalidConfigurationError, match="found 12345"):
        run(folder, starting_snapshot=12345)


def test_chosen_columns_are_read_and_others_are_refused(folder):
    append(folder, 1)
    enumerator = source_of(folder, columns=["name"]).open(SPARK)
    assert batches_of(enumerator, enumerator.next_increment())[0].to_pylist() == [{"name": "name 1"}]
    with pytest.raises(InvalidConfigurationError, match="'missing'"):
        source_of(folder, columns=["missing"]).open(SPARK)


def test_columns_are_known_by_their_ids_so_that_renamed_ones_are_read(folder):
    append(folder, 1)
    with table_in(folder) as table, table.update_schema() as update:
        update.rename_column("name", "label")
        update.add_column("more", table.schema().find_type("key"))
    append_with = pa.schema([("key", pa.int64()), ("label", pa.string()), ("more", pa.int64())])
    with table_in(folder) as table:
        table.append(pa.Table.from_pylist([{"key": 2, "label": "two", "more": 5}], append_with))
    enumerator = source_of(folder).open(SPARK)
    found = batches_of(enumerator, enumerator.next_increment())
    rows = sorted((row for batch in found for row in batch.to_pylist()), key=lambda row: row["key"])
    assert rows == [{"key": 1, "label": "name 1", "more": None}, {"key": 2, "label": "two", "more": 5}]


def test_a_retry_reads_the_columns_that_the_run_began_with(folder):
    append(folder, 1)
    state = state_of(source_of(folder).open(SPARK))
    with table_in(folder) as table, table.update_schema() as update:
        update.add_column("more", table.schema().find_type("key"))
    append(folder, 2)
    retry = source_of(folder).open(SPARK, state)
    assert batches_of(retry, retry.next_increment())[0].schema.names == ["key", "name"]


def test_a_file_that_is_gone_is_told_without_credentials(folder):
    append(folder, 1)
    enumerator = source_of(folder).open(SPARK)
    increment = enumerator.next_increment()
    for path in folder.rglob("*.parquet"):
        path.unlink()
    with pytest.raises(StorageError, match=r"file of the Iceberg table sales.orders cannot be read") as failure:
        batches_of(enumerator, increment)
    assert failure.value.__cause__ is None


def test_rows_deleted_by_equality_are_refused(folder, monkeypatch):
    append(folder, 1)

    def plan(self):
        raise ValueError("PyIceberg does not yet support equality deletes")

    monkeypatch.setattr("pyiceberg.table.DataScan.plan_files", plan)
    with pytest.raises(UnsupportedStateError, match="equality deletes"):
        source_of(folder).open(SPARK)


def test_rows_deleted_by_position_are_not_read(folder, monkeypatch):
    append(folder, 1, 2, 3)
    with table_in(folder) as table:
        (task,) = table.scan().plan_files()
    path = folder / "deletes.parquet"
    pq.write_table(pa.table({"file_path": [task.file.file_path], "pos": pa.array([1], pa.int64())}), path)
    deletes = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=path.stat().st_size,
    )
    deletes.spec_id = 0
    # PyIceberg plans such files and reads them, and writes none.
    monkeypatch.setattr("pyiceberg.table.DataScan.plan_files", lambda self: [FileScanTask(task.file, {deletes})])
    assert run(folder)[0] == [[1, 3]]


def test_small_files_share_a_task_and_large_ones_do_not(folder, monkeypatch):
    append(folder, 1)
    append(folder, 2)
    with table_in(folder) as table:
        tasks = list(table.scan().plan_files())
        assert [len(share) for share in pack_shares(tasks)] == [2]
        monkeypatch.setattr(iceberg_source, "TASK_BYTES", 1000)
        assert [len(share) for share in pack_shares(tasks)] == [1, 1]


def test_the_state_of_another_source_is_refused(folder):
    append(folder, 1)
    state = {**state_of(source_of(folder).open(SPARK)), "reader": {"schema": None}}
    with pytest.raises(CorruptStateError, match="snapshots that a source has read"):
        source_of(folder).open(SPARK, state)


def test_a_table_that_is_missing_is_told(folder):
    with pytest.raises(EnvironmentNotReadyError, match=r"sales\.missing"):
        IcebergSource("sales.missing", properties=properties_in(folder)).open(SPARK)


def test_nothing_shows_credentials(folder):
    append(folder, 1)
    source = source_of(folder)
    enumerator = source.open(SPARK)
    reader = enumerator.reader.file_reader(enumerator.next_increment().splits, pa.schema([]))
    assert isinstance(reader, IcebergFileReader)
    assert "sqlite" not in repr(source) + repr(reader) + repr(enumerator.snapshot()) + repr(source.__dict__)


def test_tasks_know_how_to_reach_the_storage_and_nothing_of_the_catalog(folder):
    append(folder, 1)
    more = {"token": "planted-token", "credential": "planted:credential", "s3.region": "planted-region"}
    source = IcebergSource(TABLE, properties={**properties_in(folder), **more, "auth.manager": lambda: None})
    enumerator: Any = source.open(SPARK)
    reader = enumerator.reader
    files = reader.file_reader(enumerator.next_increment().splits, reader.arrow_schema())
    sent = pickle.dumps(files)
    assert b"planted-region" in sent
    assert not [word for word in (b"planted-token", b"planted:", b"sqlite") if word in sent]


def test_a_value_of_a_partition_that_is_an_uuid_reaches_tasks():
    partition = Record(uuid.UUID("12345678-1234-5678-1234-567812345678"))
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path="file:///a.parquet",
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=1,
        file_size_in_bytes=1,
    )
    file.spec_id = 0
    (((told, _),),) = json.loads(json.dumps(pack_shares([FileScanTask(file)])))
    assert decode_data_file(told).partition == partition


def test_rows_cross_in_the_types_of_the_table(folder):
    append(folder, 1)
    enumerator = source_of(folder).open(SPARK)
    (batch,) = batches_of(enumerator, enumerator.next_increment())
    assert batch.to_pylist() == rows_of(1).to_pylist()


def append_file(folder, **changes):
    """Append a file that is described like the one of the table, with changes."""
    with table_in(folder) as table:
        known = next(iter(table.scan().plan_files())).file
        described = {
            "content": known.content,
            "file_path": "file:///lake/other",
            "file_format": known.file_format,
            "partition": known.partition,
            "record_count": 1,
            "file_size_in_bytes": 1,
        }
        file = DataFile.from_args(**described | changes)
        file.spec_id = known.spec_id
        with table.transaction() as transaction, transaction.update_snapshot().fast_append() as files:
            files.append_data_file(file)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"file_format": FileFormat.ORC}, "file:///lake/other in the format ORC"),
        ({"key_metadata": b"key"}, "file:///lake/other, which is encrypted"),
    ],
)
def test_files_that_are_not_plain_parquet_are_refused_in_a_first_and_in_a_later_run(folder, changes, found):
    append(folder, 1)
    _, state = run(folder)
    append_file(folder, **changes)
    with pytest.raises(UnsupportedStateError, match=found):
        run(folder)
    with pytest.raises(UnsupportedStateError, match=found):
        run(folder, state)


def of_version_3(metadata):
    metadata |= {"format-version": 3, "next-row-id": 0}


def with_a_newer_type(metadata):
    metadata["schemas"][-1]["fields"].append({"id": 99, "name": "shape", "type": "tensor", "required": False})


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (of_version_3, "format version 2 at most, found 3"),
        (lambda metadata: metadata.update({"format-version": 4}), "Input tag '4'"),
        (with_a_newer_type, "Unsupported field type: 'tensor'"),
    ],
    ids=["version 3", "version 4", "type"],
)
def test_a_table_with_features_of_another_version_is_refused_by_their_name(folder, change, found):
    with table_in(folder) as table:
        path = Path(table.metadata_location.removeprefix("file://"))
    metadata = json.loads(path.read_text())
    change(metadata)
    path.write_text(json.dumps(metadata))
    with pytest.raises(UnsupportedStateError, match=found):
        source_of(folder).open(SPARK)
