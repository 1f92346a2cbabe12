"""The metadata of a checkpoint: published whole or not at all, never over another's."""

from __future__ import annotations

import hashlib
from functools import partial

import pytest

from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.fs_storage import FsCheckpointStorageLocation
from airflow_provider_statecheck.storage.views.state_files import read_state
from airflow_provider_statecheck.storage.views.state_streams import BufferedMetadataOutputStream, publish_metadata
from airflow_provider_statecheck.testing.faults import FaultMode, FaultPlan, faulty_storage
from tests.unit.storage.views.places import files, make_access


@pytest.fixture
def location(storage: CheckpointStorage) -> FsCheckpointStorageLocation:
    return make_access(storage).initialize_location_for_checkpoint(4)


def test_finalizing_publishes_what_was_written(
    storage: CheckpointStorage, location: FsCheckpointStorageLocation
) -> None:
    stream = location.create_metadata_output_stream()
    stream.write(b"ab")
    stream.flush()
    stream.write(b"c")
    assert stream.get_pos() == 3
    assert files(storage) == set()
    completed = stream.close_and_finalize_checkpoint()
    assert completed.external_pointer == location.exclusive
    assert completed.metadata_handle.sha256 == hashlib.sha256(b"abc").hexdigest()
    assert read_state(storage, completed.metadata_handle) == b"abc"
    assert files(storage) == {f"{location.exclusive}/_metadata"}


def test_metadata_that_is_there_is_an_error_at_opening(
    storage: CheckpointStorage, location: FsCheckpointStorageLocation
) -> None:
    location.create_metadata_output_stream().close_and_finalize_checkpoint()
    with pytest.raises(StorageError, match="two checkpoints share a directory"):
        location.create_metadata_output_stream()


def test_the_slower_of_two_writers_fails_and_harms_nothing(
    storage: CheckpointStorage, location: FsCheckpointStorageLocation
) -> None:
    fast, slow = location.create_metadata_output_stream(), location.create_metadata_output_stream()
    fast.write(b"fast")
    slow.write(b"slow")
    fast.close_and_finalize_checkpoint()
    with pytest.raises(StorageError, match="other bytes"):
        slow.close_and_finalize_checkpoint()
    slow.close()
    assert storage.read_bytes(f"{location.exclusive}/_metadata") == b"fast"


def test_closing_without_finalizing_leaves_nothing(
    storage: CheckpointStorage, location: FsCheckpointStorageLocation
) -> None:
    stream = location.create_metadata_output_stream()
    stream.write(b"x")
    stream.close()
    stream.close()
    assert files(storage) == set()


def test_a_closed_stream_takes_nothing(location: FsCheckpointStorageLocation) -> None:
    stream = location.create_metadata_output_stream()
    stream.close_and_finalize_checkpoint()
    for call in (lambda: stream.write(b"x"), stream.flush, stream.get_pos, stream.close_and_finalize_checkpoint):
        with pytest.raises(StorageError, match="closed"):
            call()


@pytest.mark.parametrize("mode", [FaultMode.ERROR, FaultMode.REPLY_LOST])
def test_finalizing_may_be_repeated_after_a_failure(
    storage: CheckpointStorage, location: FsCheckpointStorageLocation, mode: FaultMode
) -> None:
    faulty = faulty_storage(storage, FaultPlan(1, mode))
    stream = BufferedMetadataOutputStream(partial(publish_metadata, faulty, location.exclusive))
    stream.write(b"x")
    with pytest.raises(StorageError, match="Injected"):
        stream.close_and_finalize_checkpoint()
    assert storage.exists(f"{location.exclusive}/_metadata") is (mode is FaultMode.REPLY_LOST)
    stream.close_and_finalize_checkpoint()
    assert storage.read_bytes(f"{location.exclusive}/_metadata") == b"x"


def test_a_completed_checkpoint_can_be_disposed_of(
    storage: CheckpointStorage, location: FsCheckpointStorageLocation
) -> None:
    completed = location.create_metadata_output_stream().close_and_finalize_checkpoint()
    storage.write_bytes(f"{location.shared}/1-{'a' * 32}", b"kept")
    completed.dispose()
    completed.dispose()
    assert files(storage) == {f"{location.shared}/1-{'a' * 32}"}
