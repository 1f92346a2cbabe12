"""A Delta sink on an object store."""

from __future__ import annotations

import pytest
from deltalake import DeltaTable

from airflow_provider_statecheck.exceptions import StaleAttemptError, StorageError
from airflow_provider_statecheck.spark.tables.delta import DeltaTableAccess, library_options
from tests.object_store import Fault
from tests.unit.spark.sinks.delta.attempts import DeltaAttempt


@pytest.fixture
def table(object_store):
    yield f"s3://{object_store.make_bucket()}/table"
    object_store.faults.clear()


@pytest.fixture
def options(object_store):
    return object_store.storage_options


def keys_of(table, options):
    found = DeltaTable(table, storage_options=library_options(table, options)).to_pyarrow_table()
    return sorted(found.column("key").to_pylist())


def test_an_object_store_holds_what_was_committed(table, options):
    first = DeltaAttempt(table, 1, storage_options=options).open()
    first.add(1, 1)
    late = first.write(2)
    second = DeltaAttempt(table, 2, restored=2, restored_epoch=1, storage_options=options).open()
    second.commit(2, late)
    third = DeltaAttempt(table, 3, restored=1, restored_epoch=1, storage_options=options).open()
    third.add(3, 3)
    third.finish()
    assert keys_of(table, options) == [1, 3]


def test_of_two_writers_of_one_version_one_wins(table, options, monkeypatch):
    first = DeltaAttempt(table, 1, storage_options=options).open()
    written = first.write(1)
    commit = DeltaTableAccess.commit

    def behind_a_newer_attempt(*args):
        monkeypatch.undo()
        DeltaAttempt(table, 2, storage_options=options).open()
        return commit(*args)

    monkeypatch.setattr(DeltaTableAccess, "commit", behind_a_newer_attempt)
    with pytest.raises(StaleAttemptError):
        first.commit(1, written)
    assert keys_of(table, options) == []


@pytest.mark.parametrize("fault", [Fault.SLOW_DOWN, Fault.REPLY_LOST, Fault.DROPPED])
@pytest.mark.parametrize("key", [r"\.parquet", "_delta_log/", "commits/", "logs/"])
def test_what_fails_for_a_moment_on_an_object_store_is_done_again(object_store, table, options, fault, key):
    attempt = DeltaAttempt(table, 1, storage_options=options).open()
    object_store.faults.inject(fault, method="PUT", key=key)
    written = attempt.write(1)
    try:
        attempt.commit(1, written)
    except StorageError:
        # Nobody knows whether the version was written; the next attempt finds out.
        attempt = DeltaAttempt(table, 2, restored=1, restored_epoch=1, storage_options=options).open()
        attempt.commit(1, written)
    attempt.finish()
    assert keys_of(table, options) == [1]


def test_a_bucket_without_rights_is_told_before_any_work_and_without_secrets(object_store, table, options):
    object_store.faults.inject(Fault.DENIED, method="PUT", times=20)
    with pytest.raises(StorageError) as found:
        DeltaAttempt(table, 1, storage_options=options).open()
    assert options["secret"] not in str(found.value)
