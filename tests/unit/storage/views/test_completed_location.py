"""From a pointer to the metadata of a checkpoint of any job."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, InvalidConfigurationError, StorageError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.state_files import read_state
from tests.unit.storage.views.places import files, make_access

OTHER_JOB = "b" * 32


@pytest.mark.parametrize("end", ["", "/", "/_metadata"])
def test_the_external_pointer_is_the_directory(storage: CheckpointStorage, end: str) -> None:
    directory = f"{storage.base_uri}/{OTHER_JOB}/chk-2"
    storage.write_bytes(f"{directory}/_metadata", b"meta")
    found = make_access(storage).resolve_checkpoint(f"{directory}{end}")
    assert found.external_pointer == directory
    assert read_state(storage, found.metadata_handle) == b"meta"


def test_a_file_is_taken_as_metadata_whatever_its_name(storage: CheckpointStorage) -> None:
    storage.write_bytes(f"{storage.base_uri}/kept/copy", b"meta")
    found = make_access(storage).resolve_checkpoint(f"{storage.base_uri}/kept/copy")
    assert (found.external_pointer, found.metadata_handle.size) == (f"{storage.base_uri}/kept", 4)


def test_a_pointer_may_lead_to_another_filesystem(local: CheckpointStorage, memory: CheckpointStorage) -> None:
    directory = f"{memory.base_uri}/{OTHER_JOB}/chk-2"
    memory.write_bytes(f"{directory}/_metadata", b"meta")
    found = make_access(local).resolve_checkpoint(directory)
    assert read_state(found.storage, found.metadata_handle) == b"meta"


def test_what_was_resolved_can_be_disposed_of(storage: CheckpointStorage) -> None:
    directory = f"{storage.base_uri}/{OTHER_JOB}/chk-2"
    storage.write_bytes(f"{directory}/_metadata", b"meta")
    make_access(storage).resolve_checkpoint(directory).dispose()
    assert files(storage) == set()


def test_a_directory_of_something_else_is_not_deleted(storage: CheckpointStorage) -> None:
    storage.write_bytes(f"{storage.base_uri}/kept/_metadata", b"meta")
    found = make_access(storage).resolve_checkpoint(f"{storage.base_uri}/kept")
    with pytest.raises(InvalidConfigurationError, match="nothing was deleted"):
        found.dispose()
    assert files(storage) == {f"{storage.base_uri}/kept/_metadata"}


def test_no_pointer_and_an_empty_one_are_told_apart(storage: CheckpointStorage) -> None:
    access = make_access(storage)
    with pytest.raises(InvalidConfigurationError, match="found None"):
        access.resolve_checkpoint(None)
    for pointer in ("", "  "):
        with pytest.raises(InvalidConfigurationError, match="empty pointer"):
            access.resolve_checkpoint(pointer)


def test_text_that_is_no_uri_is_said_to_be_perhaps_anothers(storage: CheckpointStorage) -> None:
    with pytest.raises(StorageError, match="pointer of another storage"):
        make_access(storage).resolve_checkpoint("<checkpoint-not-externally-addressable>")


def test_a_missing_path_is_named_with_its_scheme(storage: CheckpointStorage) -> None:
    pointer = f"{storage.base_uri}/{OTHER_JOB}/chk-9"
    with pytest.raises(CheckpointNotFoundError) as caught:
        make_access(storage).resolve_checkpoint(pointer)
    assert pointer in str(caught.value)
    assert f"filesystem of {pointer.partition('://')[0]}://" in str(caught.value)


def test_a_directory_without_metadata_suggests_the_file(storage: CheckpointStorage) -> None:
    storage.write_bytes(f"{storage.base_uri}/{OTHER_JOB}/chk-9/x", b"")
    with pytest.raises(CheckpointNotFoundError, match="point at the metadata file"):
        make_access(storage).resolve_checkpoint(f"{storage.base_uri}/{OTHER_JOB}/chk-9")
