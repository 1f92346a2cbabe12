"""The views on S3, with requests that fail."""

from __future__ import annotations

import uuid

import pytest

from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.storage.failures import RetryPolicy
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import open_filesystem
from airflow_provider_statecheck.storage.views.state_files import discard_state, read_state
from tests.object_store import Fault, ObjectStore
from tests.unit.storage.views.places import EXCLUSIVE, SHARED, files, job_of, make_access, save


@pytest.fixture
def s3(object_store: ObjectStore) -> CheckpointStorage:
    object_store.faults.clear()
    base = f"s3://{object_store.bucket}/{uuid.uuid4().hex[:12]}"
    filesystem = open_filesystem(base, object_store.storage_options)
    return CheckpointStorage(filesystem, base, retries=RetryPolicy(attempts=1))


def test_a_checkpoint_is_written_found_read_and_disposed_of(s3: CheckpointStorage) -> None:
    access = make_access(s3)
    access.initialize_base_locations_for_checkpoint()
    location = access.initialize_location_for_checkpoint(1)
    exclusive = save(location.create_checkpoint_state_output_stream(EXCLUSIVE), b"0123456789")
    shared = save(location.create_checkpoint_state_output_stream(SHARED), b"shared")
    stream = location.create_metadata_output_stream()
    stream.write(b"meta")
    pointer = stream.close_and_finalize_checkpoint().external_pointer
    assert read_state(s3, exclusive) == b"0123456789"
    completed = access.resolve_checkpoint(f"{pointer}/")
    assert read_state(s3, completed.metadata_handle) == b"meta"
    completed.dispose()
    assert files(s3) == {shared.uri}
    discard_state(s3, shared)
    assert files(s3) == set()


def test_a_task_writes_with_one_put_and_lists_nothing(s3: CheckpointStorage, object_store: ObjectStore) -> None:
    access = make_access(s3)
    object_store.faults.clear()
    location = access.initialize_location_for_savepoint(1, f"{s3.base_uri}/savepoints")
    streams = access.resolve_checkpoint_storage_location(1, location.location_reference)
    object_store.faults.clear()
    save(streams.create_checkpoint_state_output_stream(EXCLUSIVE), b"x" * 10_000)
    assert object_store.faults.count("PUT") == 1
    assert object_store.faults.count("GET") == 0


@pytest.mark.parametrize("fault", [Fault.DENIED, Fault.SLOW_DOWN, Fault.REPLY_LOST])
def test_a_put_that_fails_leaves_no_state(s3: CheckpointStorage, object_store: ObjectStore, fault: Fault) -> None:
    stream = make_access(s3).initialize_location_for_checkpoint(1).create_checkpoint_state_output_stream(EXCLUSIVE)
    stream.write(b"x")
    object_store.faults.inject(fault, method="PUT", times=50)  # more than the client tries by itself
    with pytest.raises(StorageError):
        stream.close_and_get_handle()
    object_store.faults.clear()
    assert files(s3) == set()


def test_a_metadata_put_of_unknown_outcome_can_be_repeated(s3: CheckpointStorage, object_store: ObjectStore) -> None:
    stream = make_access(s3).initialize_location_for_checkpoint(1).create_metadata_output_stream()
    stream.write(b"meta")
    object_store.faults.inject(Fault.REPLY_LOST, method="PUT", times=50)
    with pytest.raises(StorageError):
        stream.close_and_finalize_checkpoint()
    object_store.faults.clear()
    assert read_state(s3, stream.close_and_finalize_checkpoint().metadata_handle) == b"meta"


def test_metadata_is_never_written_over_anothers(s3: CheckpointStorage) -> None:
    location = make_access(s3).initialize_location_for_checkpoint(1)
    fast, slow = location.create_metadata_output_stream(), location.create_metadata_output_stream()
    fast.write(b"fast")
    slow.write(b"slow")
    fast.close_and_finalize_checkpoint()
    with pytest.raises(StorageError, match="other bytes"):
        slow.close_and_finalize_checkpoint()
    with pytest.raises(StorageError, match="share a directory"):
        location.create_metadata_output_stream()
    assert s3.read_bytes(f"{job_of(s3)}/chk-1/_metadata") == b"fast"


def test_the_server_copies(s3: CheckpointStorage, object_store: ObjectStore) -> None:
    access = make_access(s3)
    original = save(access.create_task_owned_state_stream(), b"x" * 1000)
    toolset = access.create_task_owned_checkpoint_state_toolset()
    assert toolset.can_fast_duplicate(original)
    object_store.faults.clear()
    (copy,) = toolset.duplicate([original])
    assert object_store.faults.count("GET") == 0
    assert isinstance(copy, FileStateHandle)
    assert read_state(s3, copy) == b"x" * 1000
