"""Checkpoint storage on a filesystem, for the coordinator and the tasks."""

from __future__ import annotations

import pickle
import re

import pytest

from airflow_provider_statecheck.checkpoint.properties import CheckpointStorageLocationReference
from airflow_provider_statecheck.checkpoint.states.handles import ByteStreamStateHandle, FileStateHandle
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StorageError
from airflow_provider_statecheck.storage.failures import is_taken
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.fs_storage import (
    NO_CHECKPOINT,
    FsCheckpointStorageAccess,
    make_savepoint_directory,
)
from airflow_provider_statecheck.storage.views.state_files import discard_state, read_state
from airflow_provider_statecheck.storage.views.state_streams import StateWriting
from tests.unit.storage.views.places import ATTEMPT, EXCLUSIVE, SHARED, files, job_of, make_access, save
from tests.unit.written_stage import local_path

DEFAULT = CheckpointStorageLocationReference.default()
SCOPES = (EXCLUSIVE, SHARED)


def test_base_locations_are_made_and_may_be_there(local: CheckpointStorage) -> None:
    access = make_access(local)
    for _ in range(2):
        access.initialize_base_locations_for_checkpoint()
    assert access.supports_highly_available_storage
    assert {p.name for p in local_path(job_of(local)).iterdir()} == {"shared", "taskowned"}


@pytest.mark.parametrize(("place", "told"), [("/shared", "File exists"), ("", None)], ids=["there", "above"])
def test_base_locations_in_whose_way_a_file_is_are_a_storage_error(
    local: CheckpointStorage, place: str, told: str | None
) -> None:
    local.write_bytes(f"{job_of(local)}{place}", b"a file")
    with pytest.raises(StorageError, match=told):
        make_access(local).initialize_base_locations_for_checkpoint()


def test_a_checkpoint_gets_a_directory_and_the_default_reference(local: CheckpointStorage) -> None:
    location = make_access(local).initialize_location_for_checkpoint(4)
    assert location.location_reference == DEFAULT
    assert local_path(f"{job_of(local)}/chk-4").is_dir()


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


def test_disposing_takes_the_own_directory_only(storage: CheckpointStorage) -> None:
    access = make_access(storage)
    location, other = (access.initialize_location_for_checkpoint(i) for i in (4, 5))
    save(location.create_checkpoint_state_output_stream(EXCLUSIVE), b"a")
    location.create_metadata_output_stream().close_and_finalize_checkpoint()
    kept = {
        save(location.create_checkpoint_state_output_stream(SHARED), b"b").uri,
        save(other.create_checkpoint_state_output_stream(EXCLUSIVE), b"c").uri,
    }
    location.dispose_on_failure()
    location.dispose_on_failure()
    assert files(storage) == kept


def test_state_of_tasks_and_shared_state_may_be_deleted_once_nobody_names_it(storage: CheckpointStorage) -> None:
    discard_state(storage, save(make_access(storage).create_task_owned_state_stream(), b"b"))
    location = make_access(storage).initialize_location_for_checkpoint(4)
    storage.delete_file(save(location.create_checkpoint_state_output_stream(SHARED), b"b").uri)
    assert files(storage) == set()


class TestSavepoints:
    def test_everything_lies_in_one_directory(self, storage: CheckpointStorage) -> None:
        target = f"{storage.base_uri}/savepoints"
        location = make_access(storage).initialize_location_for_savepoint(4, target)
        for scope in SCOPES:
            save(location.create_checkpoint_state_output_stream(scope), b"a")
        location.create_metadata_output_stream().close_and_finalize_checkpoint()
        assert {uri.rpartition("/")[0] for uri in files(storage)} == {location.exclusive}
        name = location.exclusive.removeprefix(f"{target}/")
        assert re.fullmatch(rf"savepoint-{ATTEMPT.job_id[:6]}-[0-9a-f]{{12}}", name)

    def test_an_explicit_target_beats_the_default(self, storage: CheckpointStorage) -> None:
        access = make_access(storage, savepoint_dir=f"{storage.base_uri}/default/")
        explicit = access.initialize_location_for_savepoint(1, f"{storage.base_uri}/explicit")
        assert explicit.exclusive.startswith(f"{storage.base_uri}/explicit/savepoint-")
        default = access.initialize_location_for_savepoint(1)
        assert default.exclusive.startswith(f"{storage.base_uri}/default/savepoint-")
        assert access.has_default_savepoint_location

    def test_neither_target_nor_default_is_refused(self, storage: CheckpointStorage) -> None:
        access = make_access(storage)
        assert not access.has_default_savepoint_location
        with pytest.raises(InvalidConfigurationError, match="target"):
            access.initialize_location_for_savepoint(1)

    def test_a_task_finds_it_by_its_reference(self, storage: CheckpointStorage, local: CheckpointStorage) -> None:
        location = make_access(storage).initialize_location_for_savepoint(4, f"{local.base_uri}/savepoints")
        streams = make_access(storage).resolve_checkpoint_storage_location(4, location.location_reference)
        for scope in SCOPES:
            handle = save(streams.create_checkpoint_state_output_stream(scope), b"a")
            assert handle.uri.startswith(f"{location.exclusive}/")
            assert read_state(storage.allowing(location.exclusive), handle) == b"a"

    def test_disposing_takes_its_directory(self, storage: CheckpointStorage) -> None:
        location = make_access(storage).initialize_location_for_savepoint(4, f"{storage.base_uri}-savepoints")
        save(location.create_checkpoint_state_output_stream(SHARED), b"a")
        location.dispose_on_failure()
        assert not storage.allowing(location.exclusive).exists(location.exclusive)

    def test_a_taken_directory_is_left_alone_and_another_name_tried(self, storage: CheckpointStorage) -> None:
        taken, free = (f"{storage.base_uri}/savepoint-{ATTEMPT.job_id[:6]}-{c * 12}" for c in "ab")
        storage.write_bytes(f"{taken}/_metadata", b"other")
        names = iter([taken] * 9 + [free])
        assert make_savepoint_directory(storage, storage.base_uri, ATTEMPT.job_id, lambda *_: next(names)) == free

    def test_an_empty_directory_is_taken_too(self, local: CheckpointStorage) -> None:
        taken, free = (f"{local.base_uri}/savepoint-{ATTEMPT.job_id[:6]}-{c * 12}" for c in "ab")
        local_path(taken).mkdir(parents=True)
        names = iter([taken, free])
        assert make_savepoint_directory(local, local.base_uri, ATTEMPT.job_id, lambda *_: next(names)) == free

    def test_ten_taken_names_are_an_error_that_says_the_last_cause(self, storage: CheckpointStorage) -> None:
        taken = f"{storage.base_uri}/savepoint-{ATTEMPT.job_id[:6]}-{'a' * 12}"
        storage.write_bytes(f"{taken}/_metadata", b"other")
        names = iter([taken] * 11)
        with pytest.raises(StorageError, match="10 random names taken") as caught:
            make_savepoint_directory(storage, storage.base_uri, ATTEMPT.job_id, lambda *_: next(names))
        assert caught.value.__cause__ is not None
        assert is_taken(caught.value.__cause__)
        assert len(list(names)) == 1


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
