"""Which directories a file based backend uses."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, InvalidConfigurationError, StorageError
from airflow_provider_statecheck.state.backends.file_state_backends import AbstractFileStateBackend
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.checkpoint_storage import CheckpointStorageAccess
from airflow_provider_statecheck.storage.views.fs_storage import FsCheckpointStorageAccess
from airflow_provider_statecheck.storage.views.state_files import read_state

NEW = {"execution.checkpointing.dir": "file:///new/chk", "execution.checkpointing.savepoint-dir": "file:///new/sp"}
OLD = {"state.checkpoints.dir": "file:///old/chk", "state.savepoints.dir": "file:///old/sp"}


class Backend(AbstractFileStateBackend):
    """Keeps state in files."""

    def create_checkpoint_storage(self, attempt: AttemptRef, **storage_options: Any) -> CheckpointStorageAccess:
        assert self.checkpoint_path is not None
        storage = CheckpointStorage.open(self.checkpoint_path, **storage_options)
        return FsCheckpointStorageAccess(storage, attempt, savepoint_dir=self.savepoint_path)


def test_an_argument_beats_the_configuration() -> None:
    backend = Backend("file:///arg/chk", "file:///arg/sp", NEW)
    assert (backend.checkpoint_path, backend.savepoint_path) == ("file:///arg/chk", "file:///arg/sp")


def test_each_path_is_looked_up_by_itself() -> None:
    backend = Backend("file:///arg/chk", None, NEW)
    assert (backend.checkpoint_path, backend.savepoint_path) == ("file:///arg/chk", "file:///new/sp")


def test_the_configuration_beats_none_under_both_spellings_and_the_new_one_wins(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert Backend(config=NEW).checkpoint_path == "file:///new/chk"
    with caplog.at_level(logging.WARNING):
        old, both = Backend(config=OLD), Backend(config=OLD | NEW)
    assert (old.checkpoint_path, old.savepoint_path) == ("file:///old/chk", "file:///old/sp")
    assert (both.checkpoint_path, both.savepoint_path) == ("file:///new/chk", "file:///new/sp")
    assert "state.checkpoints.dir" in caplog.text


def test_an_object_of_settings_is_as_good_as_a_mapping() -> None:
    assert Backend(config=CheckpointConfig.from_mapping(NEW)).savepoint_path == "file:///new/sp"


def test_neither_is_none() -> None:
    backend = Backend()
    assert (backend.checkpoint_path, backend.savepoint_path) == (None, None)


@pytest.mark.parametrize("path", ["/data/chk", "data", "", "file://", "file:///", "s3://bucket", "s3:///"])
@pytest.mark.parametrize("name", ["base_checkpoint_path", "base_savepoint_path"])
def test_a_path_without_scheme_or_path_or_of_a_root_is_refused(name: str, path: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=name):
        Backend(*((path, None) if name == "base_checkpoint_path" else (None, path)))


def test_a_slash_at_the_end_does_not_matter() -> None:
    assert Backend("s3://bucket/chk/").checkpoint_path == "s3://bucket/chk"


@pytest.mark.parametrize("has_directory", [True, False])
def test_a_pointer_of_any_job_is_resolved(tmp_path: Path, has_directory: bool) -> None:
    storage = CheckpointStorage.open(str(tmp_path))
    directory = f"{storage.base_uri}/{'a' * 32}/chk-1"
    storage.write_bytes(f"{directory}/_metadata", b"meta")
    backend = Backend("file:///somewhere/else" if has_directory else None)
    found = backend.resolve_checkpoint(directory)
    assert found.external_pointer == directory
    assert read_state(storage, found.metadata_handle) == b"meta"
    found.dispose()
    with pytest.raises(CheckpointNotFoundError):
        backend.resolve_checkpoint(directory)


def test_what_is_no_pointer_is_refused() -> None:
    for pointer in (None, ""):
        with pytest.raises(InvalidConfigurationError):
            Backend().resolve_checkpoint(pointer)
    with pytest.raises(StorageError):
        Backend().resolve_checkpoint("no uri")


def test_it_travels_to_other_processes() -> None:
    backend = pickle.loads(pickle.dumps(Backend(config=NEW)))
    assert backend.checkpoint_path == "file:///new/chk"
