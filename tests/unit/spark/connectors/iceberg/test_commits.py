"""Commits to a table that others change too, also on an object store."""

from __future__ import annotations

import errno
import os
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.update import AssertRefSnapshotId

from airflow_provider_statecheck.exceptions import (
    CommitStateUnknownError,
    CorruptStateError,
    StateCheckError,
    StorageError,
)
from airflow_provider_statecheck.spark.connectors.exactly_once import committer
from airflow_provider_statecheck.spark.connectors.iceberg import destination
from airflow_provider_statecheck.spark.connectors.iceberg.destination import TableLedger, files_of
from airflow_provider_statecheck.spark.connectors.iceberg.source import IcebergSource
from airflow_provider_statecheck.spark.tables.schemas import read_tasks
from airflow_provider_statecheck.testing.sink_contract import SCHEMA
from tests.object_store import KEY, REGION, SECRET, Fault
from tests.unit.spark.connectors.iceberg.tables import (
    TABLE,
    Attempt,
    append_as_somebody_else,
    create_table,
    create_table_anew,
    ledger_in,
    seen_in,
    table_in,
)

real_commit = destination.commit_edit


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(committer, "pause", lambda number: None)


def before_each_commit(monkeypatch, *acts):
    """Let something happen between the decision of a commit and the catalog."""
    waiting = list(acts)

    def commit(*args):
        if waiting:
            waiting.pop(0)()
        real_commit(*args)

    monkeypatch.setattr(destination, "commit_edit", commit)


def test_snapshot_names_its_checkpoint_and_one_without_rows_makes_none(folder):
    attempt = Attempt(folder, 1).open()
    attempt.add(7, 1)
    attempt.commit(8, attempt.write())
    attempt.finish()
    with table_in(folder) as table:
        summary = table.current_snapshot().summary
    names = ("job", "uid", "checkpoint", "generation", "epoch")
    assert [summary[f"statecheck.{name}"] for name in names] == ["balances", "stage/sink", "7", "1", "1"]


def test_checkpoint_before_a_committed_one_is_refused(folder):
    attempt = Attempt(folder, 1).open()
    attempt.add(2, 2)
    with pytest.raises(CorruptStateError, match=r"commit of checkpoint 1 .* found 1 row and no committed rows"):
        attempt.add(1, 1)
    assert seen_in(folder) == [2]


def test_ledger_lists_the_snapshots_of_committed_checkpoints_only(folder):
    first = Attempt(folder, 1).open()
    for checkpoint in (1, 2, 3):
        first.add(checkpoint, checkpoint)
    second = Attempt(folder, 2, restored=1).open()
    second.add(4, 4)
    with table_in(folder) as table:
        snapshot = table.current_snapshot().snapshot_id
    commits = ledger_in(folder, second.context.lineage).commits
    assert [(each.epoch, each.checkpoint_id, each.files, each.rows) for each in commits] == [(1, 1, 1, 1), (2, 4, 1, 1)]
    assert commits[-1].snapshot_id == snapshot


# Recreated tables and branches of the ledger


def test_table_that_was_recreated_meanwhile_is_not_written_to(folder):
    attempt = Attempt(folder, 1).open()
    written = attempt.write(1)
    create_table_anew(folder)
    for call in (lambda: attempt.commit(1, written), attempt.finish):
        with pytest.raises(CorruptStateError, match=r"table sales\.orders as attempt 1 opened it"):
            call()
    assert seen_in(folder) == []


def test_table_that_was_recreated_before_a_retry_causes_a_warning(folder, caplog):
    Attempt(folder, 1).open().add(1, 1)
    Attempt(folder, 2, restored=1, restored_epoch=1).open()
    assert "does not know" not in caplog.text
    create_table_anew(folder)
    Attempt(folder, 3, restored=1, restored_epoch=1).open()
    assert "sales.orders does not know attempt 1, which took the restored checkpoint 1" in caplog.text


@pytest.mark.parametrize("ledger", ["", "{}", '{"format_version":1}'])
def test_damaged_ledger_is_refused(folder, monkeypatch, ledger):
    Attempt(folder, 1).open()
    monkeypatch.setattr(TableLedger, "encode", lambda self: ledger)
    Attempt(folder, 2).open()
    with pytest.raises(CorruptStateError, match="format 2 in the branch statecheck-"):
        Attempt(folder, 3).open()


def test_ledger_is_kept_once_and_never_expires(tmp_path):
    create_table(tmp_path, properties={"history.expire.max-ref-age-ms": "1"})
    attempt = Attempt(tmp_path, 1).open()
    for checkpoint in range(1, 6):
        attempt.add(checkpoint, checkpoint)
    with table_in(tmp_path) as table:
        snapshots = table.metadata.snapshots
        assert len([s for s in snapshots if "statecheck.ledger" in s.summary.additional_properties]) == 1
        assert len(list((tmp_path / "warehouse").rglob("snap-*.avro"))) == len(snapshots)
        branches = [ref for name, ref in table.metadata.refs.items() if name != "main"]
    assert [ref.max_ref_age_ms for ref in branches] == [2**63 - 1]


# Changes of the table by others


def test_rows_of_others_stay_when_output_is_replaced(folder):
    append_as_somebody_else(folder, 100)
    Attempt(folder, 1).open().add(1, 1)
    append_as_somebody_else(folder, 101)
    Attempt(folder, 2, generation=2).open().finish()
    assert seen_in(folder) == [100, 101]


def test_files_with_names_of_others_are_never_removed(folder):
    attempt = Attempt(folder, 1).open()
    attempt.add(1, 1)
    lineage = attempt.context.lineage
    commits = ledger_in(folder, lineage).commits
    with table_in(folder) as table:
        assert len(files_of(table, lineage, commits, "sales.orders")) == 1
        with pytest.raises(CorruptStateError, match="found 0"):
            files_of(table, "000000000000", commits, "sales.orders")


def delete(folder, condition):
    with table_in(folder) as table:
        table.delete(condition)


def test_rewritten_output_that_must_be_replaced_is_refused_before_any_work(folder):
    attempt = Attempt(folder, 1).open()
    attempt.add(1, 1, 2)
    delete(folder, "key = 1")
    with pytest.raises(CorruptStateError, match=r"Expected 1 file of 1 checkpoint .* found 0"):
        Attempt(folder, 2, generation=2).open()
    assert ledger_in(folder, attempt.context.lineage).log.newest_epoch == 1
    assert seen_in(folder) == [2]


def test_rewritten_output_of_the_restored_checkpoint_is_kept(folder):
    Attempt(folder, 1).open().add(1, 1, 2)
    delete(folder, "key = 1")
    second = Attempt(folder, 2, restored=1).open()
    second.add(2, 3)
    second.finish()
    assert seen_in(folder) == [2, 3]


def expire(folder, is_expired):
    with table_in(folder) as table:
        keep = {ref.snapshot_id for ref in table.metadata.refs.values()}
        found = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id not in keep]
        table.maintenance.expire_snapshots().by_ids([n for n in found if is_expired(n)]).commit()


@pytest.mark.parametrize("is_expired", [True, False])
def test_table_rolled_back_to_before_the_restored_checkpoint_is_refused(folder, is_expired):
    first = Attempt(folder, 1).open()
    with table_in(folder) as table:
        empty = table.current_snapshot().snapshot_id
    first.add(1, 1)
    with table_in(folder) as table:
        before = table.current_snapshot().snapshot_id
    first.add(2, 2)
    with table_in(folder) as table:
        table.manage_snapshots().rollback_to_snapshot(before).commit()
    if is_expired:
        expire(folder, lambda snapshot_id: snapshot_id == empty)
    with pytest.raises(CorruptStateError, match="rolled back"):
        Attempt(folder, 2, restored=2).open()


def test_expired_snapshots_do_not_matter(folder):
    first = Attempt(folder, 1).open()
    first.add(1, 1)
    first.add(2, 2)
    written = first.add(3, 3)
    append_as_somebody_else(folder, 100)
    expire(folder, lambda _: True)
    second = Attempt(folder, 2, restored=3).open()
    second.commit(3, written)
    assert seen_in(folder) == [1, 2, 3, 100]
    third = Attempt(folder, 3, restored=1).open()
    third.add(4, 4)
    assert seen_in(folder) == [1, 4, 100]


def test_snapshot_that_outlives_newer_expired_ones_is_no_rollback(folder):
    Attempt(folder, 1).open().add(1, 1)
    with table_in(folder) as table:
        ours = table.current_snapshot().snapshot_id
        table.manage_snapshots().create_tag(ours, "kept").commit()
    for key in (100, 101):
        append_as_somebody_else(folder, key)
    expire(folder, lambda _: True)
    Attempt(folder, 2, restored=1).open().add(2, 2)
    assert seen_in(folder) == [1, 2, 100, 101]


# Concurrent commits


def test_commit_requires_both_branches_as_they_were_read(folder, monkeypatch):
    attempt = Attempt(folder, 1).open()
    with table_in(folder) as table:
        heads = {name: ref.snapshot_id for name, ref in table.metadata.refs.items()}
    named = []

    def commit(table, updates, requirements):
        named.append({r.ref: r.snapshot_id for r in requirements if isinstance(r, AssertRefSnapshotId)})
        real_call(table, updates, requirements)

    real_call = Table._do_commit
    monkeypatch.setattr(Table, "_do_commit", commit)
    attempt.add(1, 1)
    assert len(heads) == 2
    assert named == [heads]


def test_commits_of_others_in_between_are_kept(folder, monkeypatch):
    other, attempt = Attempt(folder, 1, job="another").open(), Attempt(folder, 1).open()
    before_each_commit(monkeypatch, lambda: append_as_somebody_else(folder, 100), lambda: other.add(1, 50))
    attempt.add(1, 1)
    other.add(2, 51)
    assert seen_in(folder) == [1, 50, 51, 100]


def test_two_sinks_that_open_an_empty_table_at_once_share_it(folder, monkeypatch):
    other, attempt = Attempt(folder, 1, job="another"), Attempt(folder, 1)
    before_each_commit(monkeypatch, other.open)
    attempt.open()
    attempt.add(1, 1)
    other.add(1, 50)
    assert seen_in(folder) == [1, 50]


def test_attempt_gives_up_when_others_always_come_first(folder, monkeypatch):
    attempt = Attempt(folder, 1).open()
    before_each_commit(monkeypatch, *[lambda: append_as_somebody_else(folder, 100)] * 50)
    with pytest.raises(StorageError, match="found a concurrent commit"):
        attempt.add(1, 1)
    assert set(seen_in(folder)) == {100}


def metadata_of(folder):
    return {path.name for path in folder.rglob("metadata/*")}


@pytest.mark.parametrize(
    "step", ["pyiceberg.manifest.ManifestWriter.add_entry", "pyiceberg.io.pyarrow.ParquetFormatWriter.write"]
)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_refuses_a_commit_is_told_once_and_keeps_no_part_of_a_file(folder, monkeypatch, step, code):
    attempt = Attempt(folder, 1, upsert_by=["key"]).open()
    attempt.add(1, 1)
    written, before, tries = attempt.write(1, 2), metadata_of(folder), []
    kept = {path.name for path in folder.rglob("*.parquet")}

    def fail(*args):
        # A try writes a manifest of what it adds and one of what it removes, in threads of their own.
        tries.append(getattr(args[1], "status", None))
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(step, fail)
        with pytest.raises(
            StorageError, match=rf"sales.orders at file://{folder}/.* failed: OSError: .*{os.strerror(code)}"
        ) as told:
            attempt.commit(2, written)
    assert "free some space" in str(told.value) or "read-only; make it writable" in str(told.value)
    assert tries
    assert len(tries) == len(set(tries))
    assert metadata_of(folder) == before
    assert {path.name for path in folder.rglob("*.parquet")} == kept
    attempt.commit(2, written)
    assert seen_in(folder) == [1, 2]


def test_a_full_disk_at_the_catalog_is_told_once_and_its_unknown_outcome_deletes_nothing(folder, monkeypatch):
    attempt = Attempt(folder, 1).open()
    written, tries = attempt.write(1), []

    def fail(*args):
        tries.append(args)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(destination, "commit_edit", fail)
        with pytest.raises(CommitStateUnknownError, match=r"No space left on device.* free some space"):
            attempt.commit(1, written)
    assert len(tries) == 1
    attempt.commit(1, written)
    assert seen_in(folder) == [1]


def test_a_snapshot_that_another_writer_expires_meanwhile_is_a_conflict_and_a_lost_file_is_not(folder, monkeypatch):
    attempt = Attempt(folder, 1).open()
    attempt.add(1, 1)
    real, tries = destination.stage_edit, []

    def stage(*args):
        tries.append(args)
        if len(tries) == 1:
            append_as_somebody_else(folder, 50)
        if len(tries) in (1, 3):
            raise FileNotFoundError("snap.avro")
        return real(*args)

    monkeypatch.setattr(destination, "stage_edit", stage)
    attempt.add(2, 2)
    assert seen_in(folder) == [1, 2, 50]
    with pytest.raises(StorageError, match=r"FileNotFoundError: snap\.avro"):
        attempt.add(3, 3)
    assert len(tries) == 3


def test_unknown_outcome_is_reported_and_deletes_nothing(folder, monkeypatch):
    attempt = Attempt(folder, 1).open()
    written = attempt.write(1)

    def commit(*args):
        raise ConnectionError("the connection broke")

    with monkeypatch.context() as patch:
        patch.setattr(destination, "commit_edit", commit)
        with pytest.raises(CommitStateUnknownError, match="ConnectionError: the connection broke"):
            attempt.commit(1, written)
    second = Attempt(folder, 2, restored=1).open()
    second.commit(1, written)
    assert seen_in(folder) == [1]


def test_commit_that_arrives_later_than_its_repetition_is_refused(folder, monkeypatch):
    attempt = Attempt(folder, 1).open()
    delayed: list[Any] = []

    def commit(table, *args):
        if delayed:
            return real_call(table, *args)
        delayed.append((table, *args))
        raise TimeoutError

    real_call = Table._do_commit
    monkeypatch.setattr(Table, "_do_commit", commit)
    attempt.add(1, 1)
    with pytest.raises(CommitFailedException, match="branch main has changed"):
        real_call(*delayed[0])
    assert seen_in(folder) == [1]


@pytest.fixture
def properties(object_store, tmp_path):
    object_store.faults.clear()
    found = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"s3://{object_store.make_bucket()}/warehouse",
        "s3.endpoint": object_store.endpoint_url,
        "s3.access-key-id": KEY,
        "s3.secret-access-key": SECRET,
        "s3.region": REGION,
    }
    catalog = load_catalog(None, **found)
    catalog.create_namespace("sales")
    catalog.create_table(TABLE, SCHEMA)
    catalog.close()
    return found


def read(properties):
    spark: Any = None  # planning needs none
    enumerator = IcebergSource(TABLE, properties=properties).open(spark)
    increment: Any = enumerator.next_increment()
    reader: Any = enumerator.reader
    files = reader.file_reader(increment.splits, reader.arrow_schema())
    batches = read_tasks(files, [pa.record_batch([pa.array([0])], names=["id"])])
    return sorted(key for batch in batches for key in batch.column("key").to_pylist())


@pytest.mark.parametrize("upsert_by", [[], ["key"]])
def test_committed_rows_are_read_and_no_credentials_are_shown(properties, tmp_path, upsert_by):
    attempt = Attempt(tmp_path, 1, properties=properties, upsert_by=upsert_by).open()
    first = attempt.write(1, 2)
    attempt.commit(1, first)
    attempt.commit(1, first)
    attempt.commit(2, attempt.write(3))
    attempt.finish()
    assert read(properties) == [1, 2, 3]
    shown = repr((first, attempt.sink.__dict__))
    assert KEY not in shown
    assert SECRET not in shown


def test_failures_tell_no_credentials(object_store, properties, tmp_path, monkeypatch):
    monkeypatch.setattr(committer, "pause", lambda number: None)
    attempt = Attempt(tmp_path, 1, properties=properties).open()
    committables = attempt.write(1)
    object_store.faults.inject(Fault.DENIED, method="PUT|POST", times=1000)
    failures: list[tuple[Any, type[StateCheckError]]] = [
        (lambda: attempt.write(2), StorageError),
        (lambda: attempt.commit(1, committables), StorageError),
    ]
    for act, kind in failures:
        with pytest.raises(kind) as failure:
            act()
        assert SECRET not in repr(failure.value)
        assert KEY not in repr(failure.value)
    object_store.faults.clear()
    attempt.commit(1, committables)
    assert read(properties) == [1]
