"""File merging on S3, with requests that fail."""

from __future__ import annotations

import uuid

import pytest

from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.storage.failures import RetryPolicy
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.schemes import open_filesystem
from tests.object_store import Fault, ObjectStore
from tests.unit.storage.file_merging.driving import ACROSS, EXCLUSIVE, WITHIN, Driver, subtask


@pytest.fixture
def s3(object_store: ObjectStore) -> CheckpointStorage:
    object_store.faults.clear()
    base = f"s3://{object_store.bucket}/{uuid.uuid4().hex}"
    filesystem = open_filesystem(base, object_store.storage_options)
    return CheckpointStorage(filesystem, base, retries=RetryPolicy(attempts=1))


def test_many_segments_are_one_put_and_lie_where_their_handles_say(
    s3: CheckpointStorage, object_store: ObjectStore
) -> None:
    driver = Driver.over(s3, buffer=64)
    data = [b"%d" % n * 50 for n in range(1, 20)]
    handles = [driver.write(part, scope=EXCLUSIVE) for part in data]
    assert object_store.faults.count("PUT", "taskowned") == 0
    driver.durable()
    assert object_store.faults.count("PUT", "taskowned") == 1
    assert [driver.read(handle) for handle in handles] == data


def test_a_file_is_reused_until_it_is_put(s3: CheckpointStorage) -> None:
    driver = Driver.over(s3, merging_type=ACROSS)
    first, second = driver.write(b"a", 1), driver.write(b"b", 2)
    driver.durable(1)
    third = driver.saved(b"c", 2)
    assert first.uri == second.uri != third.uri
    assert [driver.read(h) for h in (first, second, third)] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("fault", [Fault.DENIED, Fault.SLOW_DOWN, Fault.REPLY_LOST])
def test_a_put_that_fails_is_told_and_can_be_repeated(
    s3: CheckpointStorage, object_store: ObjectStore, fault: Fault
) -> None:
    driver = Driver.over(s3)
    handle = driver.write(b"bytes")
    object_store.faults.inject(fault, method="PUT", key="merged-", times=50)  # more than the client tries by itself
    with pytest.raises(StorageError):
        driver.durable()
    object_store.faults.clear()
    driver.durable()
    assert driver.read(handle) == b"bytes"


def test_what_a_put_of_unknown_outcome_left_goes_with_its_checkpoint(
    s3: CheckpointStorage, object_store: ObjectStore
) -> None:
    driver = Driver.over(s3, merging_type=WITHIN)
    driver.write(b"bytes")
    object_store.faults.inject(Fault.REPLY_LOST, method="PUT", key="merged-", times=50)
    with pytest.raises(StorageError):
        driver.durable()
    object_store.faults.clear()
    assert len(driver.files()) == 1
    driver.aborted(1)
    assert driver.files() == set()


def test_restored_objects_are_owned_and_deleted_with_their_last_segment(s3: CheckpointStorage) -> None:
    handle = Driver.over(s3).saved(b"x", 3)
    new = Driver.over(s3, epoch=2)
    new.manager.restore_state_handles(3, subtask(), [handle])
    assert new.read(handle) == b"x"
    new.subsumed(3)
    assert new.files() == set()
