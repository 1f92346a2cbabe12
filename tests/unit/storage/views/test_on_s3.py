"""The views on S3, with requests that fail."""

from __future__ import annotations

import uuid

import pytest

from airflow_provider_statecheck.checkpoint.properties import DEFAULT_LOCATION
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.storage.failures import RetryPolicy
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.pointers import StateCopies
from airflow_provider_statecheck.storage.uris import open_filesystem
from airflow_provider_statecheck.storage.views.state_files import discard_state, read_state
from airflow_provider_statecheck.storage.views.state_streams import CheckpointStreamFactory
from tests.object_store import Fault, ObjectStore
from tests.unit.storage.views.places import EXCLUSIVE, SHARED, files, make_access, save


@pytest.fixture
def s3(object_store: ObjectStore) -> CheckpointStorage:
    object_store.faults.clear()
    base = f"s3://{object_store.bucket}/{uuid.uuid4().hex[:12]}"
    filesystem = open_filesystem(base, object_store.storage_options)
    return CheckpointStorage(filesystem, base, retries=RetryPolicy(attempts=1))


def test_state_of_a_checkpoint_is_written_and_read(s3: CheckpointStorage) -> None:
    location = make_access(s3).initialize_location_for_checkpoint(1)
    exclusive = save(location.create_checkpoint_state_output_stream(EXCLUSIVE), b"0123456789")
    shared = save(location.create_checkpoint_state_output_stream(SHARED), b"shared")
    assert [read_state(s3, handle) for handle in (exclusive, shared)] == [b"0123456789", b"shared"]
    for handle in (exclusive, shared):
        discard_state(s3, handle)
    assert files(s3) == set()


@pytest.mark.parametrize("is_driver", [True, False], ids=["driver", "task"])
def test_state_is_written_with_one_put_and_nothing_is_listed(
    s3: CheckpointStorage, object_store: ObjectStore, is_driver: bool
) -> None:
    access = make_access(s3)
    object_store.faults.clear()
    streams: CheckpointStreamFactory = (
        access.initialize_location_for_checkpoint(1)
        if is_driver
        else access.resolve_checkpoint_storage_location(1, DEFAULT_LOCATION)
    )
    save(streams.create_checkpoint_state_output_stream(EXCLUSIVE), b"x" * 10_000)
    assert object_store.faults.count("PUT") == 1
    assert object_store.faults.count("GET") == object_store.faults.count("HEAD") == 0


@pytest.mark.parametrize("fault", [Fault.DENIED, Fault.SLOW_DOWN, Fault.REPLY_LOST])
def test_a_put_that_fails_leaves_no_state(s3: CheckpointStorage, object_store: ObjectStore, fault: Fault) -> None:
    stream = make_access(s3).initialize_location_for_checkpoint(1).create_checkpoint_state_output_stream(EXCLUSIVE)
    stream.write(b"x")
    object_store.faults.inject(fault, method="PUT", times=50)  # more than the client tries by itself
    with pytest.raises(StorageError):
        stream.close_and_get_handle()
    object_store.faults.clear()
    assert files(s3) == set()


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


def test_the_server_copies_the_state_of_a_savepoint(s3: CheckpointStorage, object_store: ObjectStore) -> None:
    original = save(make_access(s3).create_task_owned_state_stream(), b"x" * 1000)
    object_store.faults.clear()
    copy = StateCopies(s3, f"{s3.base_uri}/savepoint-000000-000000000000", 1).of_stream(original)
    assert object_store.faults.count("GET") == 0
    assert isinstance(copy, FileStateHandle)
    assert read_state(s3, copy) == b"x" * 1000
