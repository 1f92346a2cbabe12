"""Checkpoint storage whose state travels in handles, and storages by their names and settings."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import DEFAULT_LOCATION, CheckpointStorageLocationReference
from airflow_provider_statecheck.checkpoint.states.handles import ByteStreamStateHandle, FileStateHandle
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StorageError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.checkpoint_storages import (
    CHECKPOINT_STORAGES,
    CheckpointStorageFactory,
    FsCheckpointStorageAccess,
    MemoryBackendCheckpointStorageAccess,
    MemoryCheckpointOutputStream,
    load_checkpoint_storage,
)
from airflow_provider_statecheck.storage.views.state_files import CheckpointStorageAccess
from airflow_provider_statecheck.storage.views.state_streams import StateWriting
from tests.unit.storage.views.places import ATTEMPT, EXCLUSIVE, SHARED, files, save


class OwnStorage(FsCheckpointStorageAccess):
    """The files of this package, under another name."""


class OwnStorageFactory(CheckpointStorageFactory):
    def create_checkpoint_storage(
        self, storage: CheckpointStorage, attempt: AttemptRef, writing: StateWriting
    ) -> CheckpointStorageAccess:
        return OwnStorage(storage, attempt, writing=writing)

    def get_identifier(self) -> str:
        return "own"


OWN = f"{__name__}:OwnStorageFactory"


def load(storage: CheckpointStorage, **settings: Any) -> CheckpointStorageAccess:
    config = CheckpointConfig()
    for name, value in settings.items():
        setattr(config, name, value)
    return load_checkpoint_storage(storage, ATTEMPT, config)


def test_a_storage_may_be_an_object_or_the_uri_of_its_directory(storage: CheckpointStorage) -> None:
    assert type(load(storage, checkpoint_storage=OwnStorageFactory())) is OwnStorage
    assert type(load(storage, checkpoint_storage=OwnStorageFactory)) is OwnStorage
    assert type(load(storage, checkpoint_storage=storage.base_uri)) is FsCheckpointStorageAccess


@pytest.mark.parametrize(
    ("name", "kind", "identifier"),
    [
        (None, FsCheckpointStorageAccess, "filesystem"),
        ("filesystem", FsCheckpointStorageAccess, "filesystem"),
        ("JobManager", MemoryBackendCheckpointStorageAccess, "jobmanager"),
        ("memory", MemoryBackendCheckpointStorageAccess, "jobmanager"),
    ],
)
def test_a_storage_is_found_by_its_name(
    storage: CheckpointStorage, name: str | None, kind: type, identifier: str
) -> None:
    assert type(load(storage, checkpoint_storage=name)) is kind
    assert CHECKPOINT_STORAGES.find(name or "filesystem").get_identifier() == identifier


@pytest.mark.parametrize("name", [OWN, "own"])
def test_a_storage_of_ones_own_is_found_by_its_path_or_entry_point(
    storage: CheckpointStorage, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    found = EntryPoint(name="own", value=OWN, group="airflow_provider_statecheck.checkpoint_storages")
    where = "airflow_provider_statecheck.storage.views.checkpoint_storages.entry_points"
    monkeypatch.setattr(where, lambda *, group, name: [found] if (group, name) == (found.group, found.name) else [])
    assert type(load(storage, checkpoint_storage=name)) is OwnStorage


@pytest.mark.parametrize("name", ["rocks", "no.such.Factory", f"{__name__}:load"])
def test_what_is_no_storage_is_named(storage: CheckpointStorage, name: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=r"execution\.checkpointing\.storage.*filesystem, jobmanager"):
        load(storage, checkpoint_storage=name)


class HalfStorageFactory(OwnStorageFactory):
    def create_checkpoint_storage(self, *_: object) -> Any:
        return object()


def test_storage_without_a_method_is_told_which(storage: CheckpointStorage) -> None:
    with pytest.raises(InvalidConfigurationError, match="without create_task_owned_checkpoint_state_toolset, create"):
        load(storage, checkpoint_storage=HalfStorageFactory())


def test_settings_of_writing_reach_the_streams(storage: CheckpointStorage) -> None:
    view = load(storage, data_inline_threshold=3, write_buffer_size=5)
    streams = view.resolve_checkpoint_storage_location(1, DEFAULT_LOCATION)
    assert isinstance(save(streams.create_checkpoint_state_output_stream(SHARED), b"abc"), ByteStreamStateHandle)
    large = save(streams.create_checkpoint_state_output_stream(SHARED), b"abcd")
    assert files(storage) == {large.uri}


def test_state_of_the_storage_in_memory_is_in_its_handles(storage: CheckpointStorage) -> None:
    streams = load(storage, checkpoint_storage="jobmanager").resolve_checkpoint_storage_location(1, DEFAULT_LOCATION)
    handle = save(streams.create_checkpoint_state_output_stream(SHARED), b"x" * (1 << 20))
    assert isinstance(handle, ByteStreamStateHandle)
    assert files(storage) == set()


def _access(storage: CheckpointStorage, **settings: Any) -> MemoryBackendCheckpointStorageAccess:
    return MemoryBackendCheckpointStorageAccess(ATTEMPT, storage, **settings)


@pytest.mark.parametrize("size", [0, -1])
def test_a_limit_must_be_above_zero(storage: CheckpointStorage, size: int) -> None:
    with pytest.raises(InvalidConfigurationError, match="above 0"):
        _access(storage, max_state_size=size)


def test_the_limit_is_5_mib_where_nothing_is_said(storage: CheckpointStorage) -> None:
    stream = _access(storage).create_task_owned_state_stream()
    assert save(stream, b"x" * 5 * 1024 * 1024).state_size == 5 * 1024 * 1024
    with pytest.raises(StorageError):
        save(_access(storage).create_task_owned_state_stream(), b"x" * (5 * 1024 * 1024 + 1))


def test_state_above_the_limit_is_an_error_at_closing_that_says_both_sizes_and_what_to_do() -> None:
    stream = MemoryCheckpointOutputStream(3)
    stream.write(b"abcd")
    with pytest.raises(StorageError, match=r"at most 3 bytes.*found 4.*execution.checkpointing.storage to filesystem"):
        stream.close_and_get_handle()


def test_state_travels_in_its_handle_and_nothing_is_none() -> None:
    stream = MemoryCheckpointOutputStream(3)
    stream.write(b"ab")
    stream.flush_to_file()
    assert stream.get_pos() == 2
    handle = save(stream, b"c")
    assert isinstance(handle, ByteStreamStateHandle)
    assert handle.data == b"abc"
    assert MemoryCheckpointOutputStream(3).close_and_get_handle() is None


def test_a_closed_stream_takes_nothing_and_gives_nothing() -> None:
    stream = MemoryCheckpointOutputStream(3)
    stream.close()
    for call in (lambda: stream.write(b"x"), stream.flush_to_file, stream.close_and_get_handle):
        with pytest.raises(StorageError, match="closed"):
            call()


def test_state_of_the_driver_is_in_its_handle(storage: CheckpointStorage) -> None:
    location = _access(storage).initialize_location_for_checkpoint(1)
    for scope in (EXCLUSIVE, SHARED):
        assert isinstance(save(location.create_checkpoint_state_output_stream(scope), b"a"), ByteStreamStateHandle)
    assert files(storage) == set()


def test_an_id_below_zero_is_refused(storage: CheckpointStorage) -> None:
    with pytest.raises(InvalidConfigurationError, match="at least 0"):
        _access(storage).initialize_location_for_checkpoint(-1)


def test_tasks_write_into_memory_wherever_metadata_goes(storage: CheckpointStorage) -> None:
    access = _access(storage)
    for reference in (
        CheckpointStorageLocationReference.default(),
        CheckpointStorageLocationReference.of_path(f"{storage.base_uri}/x"),
    ):
        streams = access.resolve_checkpoint_storage_location(1, reference)
        handle = save(streams.create_checkpoint_state_output_stream(SHARED), b"a")
        assert isinstance(handle, ByteStreamStateHandle)


def test_there_is_nothing_to_merge_or_to_copy(storage: CheckpointStorage) -> None:
    access = _access(storage)
    environment: Any = None
    assert access.to_file_merging_storage(environment, environment) is access
    toolset = access.create_task_owned_checkpoint_state_toolset()
    assert not toolset.can_fast_duplicate(FileStateHandle("memory://x/y", 1))
    with pytest.raises(InvalidConfigurationError):
        toolset.duplicate([ByteStreamStateHandle("n", b"x")])
