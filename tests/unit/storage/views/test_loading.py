"""Checkpoint storages by their names, and their settings."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import DEFAULT_LOCATION
from airflow_provider_statecheck.checkpoint.states.handles import ByteStreamStateHandle
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.fs_storage import FsCheckpointStorageAccess
from airflow_provider_statecheck.storage.views.loading import (
    CHECKPOINT_STORAGES,
    CheckpointStorageFactory,
    FsCheckpointStorageFactory,
    MemoryBackendCheckpointStorageAccess,
    load_checkpoint_storage,
)
from airflow_provider_statecheck.storage.views.state_files import CheckpointStorageAccess
from airflow_provider_statecheck.storage.views.state_streams import StateWriting
from tests.unit.storage.views.places import ATTEMPT, SHARED, files, save


class OwnStorageFactory(CheckpointStorageFactory):
    def create_checkpoint_storage(
        self, storage: CheckpointStorage, attempt: AttemptRef, writing: StateWriting
    ) -> CheckpointStorageAccess:
        return FsCheckpointStorageAccess(storage, attempt, writing=writing, savepoint_dir=f"{storage.base_uri}/own")

    def get_identifier(self) -> str:
        return "own"


OWN = f"{__name__}:OwnStorageFactory"


def load(storage: CheckpointStorage, **settings: Any) -> CheckpointStorageAccess:
    config = CheckpointConfig()
    for name, value in settings.items():
        setattr(config, name, value)
    return load_checkpoint_storage(storage, ATTEMPT, config)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (None, FsCheckpointStorageAccess),
        ("filesystem", FsCheckpointStorageAccess),
        ("JobManager", MemoryBackendCheckpointStorageAccess),
        ("memory", MemoryBackendCheckpointStorageAccess),
    ],
)
def test_a_storage_is_found_by_its_name(storage: CheckpointStorage, name: str | None, kind: type) -> None:
    assert type(load(storage, checkpoint_storage=name)) is kind


@pytest.mark.parametrize("name", ["filesystem", "jobmanager"])
def test_the_identifier_is_a_name(name: str) -> None:
    assert CHECKPOINT_STORAGES.find(name).get_identifier() == name


def test_a_storage_of_ones_own_is_found_by_its_path(storage: CheckpointStorage) -> None:
    assert load(storage, checkpoint_storage=OWN).has_default_savepoint_location


def test_a_storage_of_ones_own_is_found_by_its_entry_point(
    storage: CheckpointStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = EntryPoint(name="own", value=OWN, group="airflow_provider_statecheck.checkpoint_storages")
    where = "airflow_provider_statecheck.storage.views.loading.entry_points"
    monkeypatch.setattr(where, lambda *, group, name: [found] if (group, name) == (found.group, found.name) else [])
    assert load(storage, checkpoint_storage="own").has_default_savepoint_location


@pytest.mark.parametrize("name", ["rocks", "no.such.Factory", f"{__name__}:load"])
def test_what_is_no_storage_is_named(storage: CheckpointStorage, name: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=r"execution\.checkpointing\.storage.*filesystem, jobmanager"):
        load(storage, checkpoint_storage=name)


def test_settings_of_writing_reach_the_streams(storage: CheckpointStorage) -> None:
    view = load(storage, data_inline_threshold=3, write_buffer_size=5)
    streams = view.resolve_checkpoint_storage_location(1, DEFAULT_LOCATION)
    assert isinstance(save(streams.create_checkpoint_state_output_stream(SHARED), b"abc"), ByteStreamStateHandle)
    large = save(streams.create_checkpoint_state_output_stream(SHARED), b"abcd")
    assert files(storage) == {large.uri}
    writing = StateWriting(epoch=ATTEMPT.epoch, inline_threshold=3, write_buffer_size=5)
    assert FsCheckpointStorageFactory().create_checkpoint_storage(storage, ATTEMPT, writing) is not None


def test_state_of_the_storage_in_memory_is_in_its_handles(storage: CheckpointStorage) -> None:
    streams = load(storage, checkpoint_storage="jobmanager").resolve_checkpoint_storage_location(1, DEFAULT_LOCATION)
    handle = save(streams.create_checkpoint_state_output_stream(SHARED), b"x" * (1 << 20))
    assert isinstance(handle, ByteStreamStateHandle)
    assert files(storage) == set()
