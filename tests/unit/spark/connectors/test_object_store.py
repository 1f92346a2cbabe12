"""Sinks whose target is in an object store, which fails at times."""

from __future__ import annotations

from typing import Any

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from airflow_provider_statecheck.exceptions import StaleAttemptError, StorageError
from airflow_provider_statecheck.spark.connectors.delta.table import DeltaTableAccess, library_options
from tests.object_store import Fault
from tests.soak import rest_in_soak
from tests.unit.spark.connectors.attempts import Attempt, committed_in, seen_in
from tests.unit.spark.connectors.delta.attempts import DeltaAttempt


def keys_of_directory(target, options):
    assert committed_in(target, options) == seen_in(target, options)
    return seen_in(target, options)


def keys_of_table(target, options):
    found: ds.Dataset = DeltaTable(target, storage_options=library_options(target, options)).to_pyarrow_dataset()
    return sorted(found.to_table().column("key").to_pylist())


PARQUET, DELTA = (Attempt, keys_of_directory), (DeltaAttempt, keys_of_table)
STORES = pytest.mark.parametrize(("kind", "keys_in"), [PARQUET, DELTA], ids=["parquet", "delta"])


@pytest.fixture
def target(object_store):
    yield f"s3://{object_store.make_bucket()}/table"
    object_store.faults.clear()


@pytest.fixture
def options(object_store):
    return object_store.storage_options


@STORES
def test_an_object_store_holds_what_was_committed(target, options, kind, keys_in):
    first = kind(target, 1, storage_options=options).open()
    first.add(1, 1)
    late = first.write(2)
    second = kind(target, 2, restored=2, storage_options=options).open()
    second.commit(2, late)
    third = kind(target, 3, restored=1, storage_options=options).open()
    third.add(3, 3)
    third.finish()
    assert keys_in(target, options) == [1, 3]


REQUESTS: list[tuple[Any, Any, str, str]] = [
    *((*PARQUET, "PUT", key) for key in (r"\.staged", "part-", "commits/")),
    (*PARQUET, "DELETE|POST", ""),
    *((*DELTA, "PUT", key) for key in (r"\.parquet", "_delta_log/", "commits/", "logs/")),
]


@pytest.mark.parametrize("fault", rest_in_soak([Fault.SLOW_DOWN, Fault.REPLY_LOST, Fault.DROPPED], Fault.REPLY_LOST))
@pytest.mark.parametrize(
    ("kind", "keys_in", "method", "key"),
    REQUESTS,
    ids=[f"{kind.__name__}-{method}-{key}" for kind, _, method, key in REQUESTS],
)
def test_what_fails_for_a_moment_is_done_again(object_store, target, options, fault, kind, keys_in, method, key):
    attempt = kind(target, 1, storage_options=options).open()
    object_store.faults.inject(fault, method=method, key=key)
    written = attempt.write(1)
    try:
        attempt.commit(1, written)
    except StorageError:
        # Nobody knows whether a version of the table was written; the next attempt finds out.
        assert kind is DeltaAttempt
        attempt = kind(target, 2, restored=1, storage_options=options).open()
        attempt.commit(1, written)
    attempt.finish()
    assert keys_in(target, options) == [1]


@STORES
def test_a_bucket_without_rights_is_told_before_any_work_and_without_secrets(
    object_store, target, options, kind, keys_in
):
    object_store.faults.inject(Fault.DENIED, method="PUT", times=20)
    with pytest.raises(StorageError) as found:
        kind(target, 1, storage_options=options).open()
    assert options["secret"] not in str(found.value)
    assert kind is DeltaAttempt or "Check the credentials" in str(found.value)


def test_of_two_writers_of_one_version_of_a_table_one_wins(target, options, monkeypatch):
    first = DeltaAttempt(target, 1, storage_options=options).open()
    written = first.write(1)
    commit = DeltaTableAccess.commit

    def behind_a_newer_attempt(*args):
        monkeypatch.undo()
        DeltaAttempt(target, 2, storage_options=options).open()
        return commit(*args)

    monkeypatch.setattr(DeltaTableAccess, "commit", behind_a_newer_attempt)
    with pytest.raises(StaleAttemptError):
        first.commit(1, written)
    assert keys_of_table(target, options) == []
