"""Checkpoint storage on a filesystem, for the driver and the tasks."""

from __future__ import annotations

import pickle

import pytest

from airflow_provider_statecheck.checkpoint.properties import CheckpointStorageLocationReference
from airflow_provider_statecheck.checkpoint.states.handles import ByteStreamStateHandle, FileStateHandle
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StorageError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.checkpoint_storages import NO_CHECKPOINT, FsCheckpointStorageAccess
from airflow_provider_statecheck.storage.views.state_files import discard_state, read_state
from airflow_provider_statecheck.storage.views.state_streams import StateWriting
from tests.unit.storage.views.places import ATTEMPT, EXCLUSIVE, SHARED, files, job_of, make_access, save
from tests.unit.written_stage import local_path

DEFAULT = CheckpointStorageLocationReference.default()
SCOPES = (EXCLUSIVE, SHARED)


def test_a_checkpoint_gets_a_directory(local: CheckpointStorage) -> None:
    for _ in range(2):
        make_access(local).initialize_location_for_checkpoint(4)
    assert local_path(f"{job_of(local)}/chk-4").is_dir()


def test_a_file_in_the_way_of_a_checkpoint_is_a_storage_error(local: CheckpointStorage) -> None:
    local.write_bytes(f"{job_of(local)}/chk-4", b"a file")
    with pytest.raises(StorageError, match="File exists"):
        make_access(local).initialize_location_for_checkpoint(4)


def test_an_id_below_zero_is_refused(storage: CheckpointStorage) -> None:
    with pytest.raises(InvalidConfigurationError, match="at least 0"):
        make_access(storage).initialize_location_for_checkpoint(-1)
    assert make_access(storage).initialize_location_for_checkpoint(0).exclusive == f"{job_of(storage)}/chk-0"


def test_exclusive_state_lies_in_the_checkpoint_and_shared_state_beside_it(storage: CheckpointStorage) -> None:
    location = make_access(storage).initialize_location_for_checkpoint(4)
    exclusive = save(location.create_checkpoint_state_output_stream(EXCLUSIVE), b"a")
    shared = save(location.create_checkpoint_state_output_stream(SHARED), b"b")
    assert exclusive.uri.startswith(f"{job_of(storage)}/chk-4/")
    assert shared.uri.startswith(f"{job_of(storage)}/shared/{ATTEMPT.operator_id}/")


def test_state_of_tasks_and_shared_state_may_be_deleted_once_nobody_names_it(storage: CheckpointStorage) -> None:
    discard_state(storage, save(make_access(storage).create_task_owned_state_stream(), b"b"))
    location = make_access(storage).initialize_location_for_checkpoint(4)
    storage.delete_file(save(location.create_checkpoint_state_output_stream(SHARED), b"b").uri)
    assert files(storage) == set()


class TestWorkers:
    def test_resolving_makes_no_directory(self, local: CheckpointStorage) -> None:
        access = make_access(local)
        streams = access.resolve_checkpoint_storage_location(4, DEFAULT)
        streams.create_checkpoint_state_output_stream(SHARED).close()
        access.create_task_owned_state_stream().close()
        assert not local_path(local.base_uri).exists()

    def test_the_default_reference_means_the_configured_place(self, storage: CheckpointStorage) -> None:
        streams = make_access(storage).resolve_checkpoint_storage_location(4, DEFAULT)
        handle = save(streams.create_checkpoint_state_output_stream(EXCLUSIVE), b"a")
        assert handle.uri.startswith(f"{job_of(storage)}/chk-4/")

    def test_another_reference_means_its_path_on_its_filesystem(
        self, storage: CheckpointStorage, local: CheckpointStorage
    ) -> None:
        directory = f"{local.base_uri}/savepoint-000000-{'a' * 12}"
        reference = CheckpointStorageLocationReference.of_path(directory)
        streams = make_access(storage).resolve_checkpoint_storage_location(4, reference)
        for scope in SCOPES:
            handle = save(streams.create_checkpoint_state_output_stream(scope), b"a")
            assert handle.uri.startswith(f"{directory}/")
            assert read_state(storage.allowing(directory), handle) == b"a"

    def test_state_between_checkpoints_is_shared(self, storage: CheckpointStorage) -> None:
        streams = make_access(storage).resolve_checkpoint_storage_location(NO_CHECKPOINT, DEFAULT)
        places = {save(streams.create_checkpoint_state_output_stream(s), b"a").uri.rpartition("/")[0] for s in SCOPES}
        assert places == {f"{job_of(storage)}/shared/{ATTEMPT.operator_id}/state"}

    @pytest.mark.parametrize("encoded", [b"\x05\x5f\x3f\x18", b"abcdefgh", b"\x05\x5f\x3f\x18\xff"])
    def test_a_reference_that_cannot_be_decoded_is_refused(self, storage: CheckpointStorage, encoded: bytes) -> None:
        with pytest.raises(InvalidConfigurationError, match="location reference"):
            make_access(storage).resolve_checkpoint_storage_location(1, CheckpointStorageLocationReference(encoded))

    def test_a_reference_to_no_uri_is_refused(self, storage: CheckpointStorage) -> None:
        reference = CheckpointStorageLocationReference.of_path("somewhere")
        with pytest.raises(InvalidConfigurationError, match="absolute URI"):
            make_access(storage).resolve_checkpoint_storage_location(1, reference)

    def test_state_of_tasks_lies_with_tasks_and_small_one_in_its_handle(self, storage: CheckpointStorage) -> None:
        large = save(make_access(storage).create_task_owned_state_stream(), b"a")
        assert isinstance(large, FileStateHandle)
        assert large.uri.startswith(f"{job_of(storage)}/taskowned/{ATTEMPT.operator_id}/")
        small = save(make_access(storage, inline_threshold=10).create_task_owned_state_stream(), b"a")
        assert isinstance(small, ByteStreamStateHandle)


def test_writing_in_the_name_of_another_epoch_is_refused(storage: CheckpointStorage) -> None:
    with pytest.raises(InvalidConfigurationError, match="epoch 3, found 4"):
        FsCheckpointStorageAccess(storage, ATTEMPT, writing=StateWriting(epoch=4))


def test_state_is_written_as_the_attempt_where_nothing_is_said(storage: CheckpointStorage) -> None:
    stream = FsCheckpointStorageAccess(storage, ATTEMPT).create_task_owned_state_stream()
    assert save(stream, b"x" * 20481).uri.rpartition("/")[2].startswith("3-")


def test_settings_of_writing_travel_to_other_processes() -> None:
    writing = StateWriting(epoch=1, inline_threshold=7)
    assert pickle.loads(pickle.dumps(writing)) == writing
