from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, InvalidConfigurationError, StorageError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.pointer import resolve_checkpoint


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    storage = CheckpointStorage.open(str(tmp_path))
    storage.write_bytes(f"{storage.base_uri}/job/chk-1/_metadata", b"x")
    storage.write_bytes(f"{storage.base_uri}/job/chk-1/copy", b"x")
    (tmp_path / "job" / "empty").mkdir()
    return storage


@pytest.mark.parametrize("end", ["chk-1", "chk-1/", "chk-1/_metadata"])
def test_directory_with_or_without_slash_and_file_are_one_pointer(storage: CheckpointStorage, end: str) -> None:
    found = resolve_checkpoint(storage, f"{storage.base_uri}/job/{end}")
    assert found.directory_uri == f"{storage.base_uri}/job/chk-1"
    assert found.metadata_uri == f"{storage.base_uri}/job/chk-1/_metadata"


def test_a_file_is_metadata_whatever_its_name(storage: CheckpointStorage) -> None:
    pointer = f"{storage.base_uri}/job/chk-1/copy"
    assert resolve_checkpoint(storage, pointer).metadata_uri == pointer


@pytest.mark.parametrize("pointer", [None, "", "  "])
def test_no_pointer_is_an_argument_error(storage: CheckpointStorage, pointer: str | None) -> None:
    with pytest.raises(InvalidConfigurationError):
        resolve_checkpoint(storage, pointer)


def test_text_that_is_no_uri_is_said_to_be_none(storage: CheckpointStorage) -> None:
    with pytest.raises(StorageError, match="Expected a URI"):
        resolve_checkpoint(storage, "<checkpoint-not-externally-addressable>")


def test_a_missing_path_is_not_found(storage: CheckpointStorage) -> None:
    with pytest.raises(CheckpointNotFoundError, match="found nothing there"):
        resolve_checkpoint(storage, f"{storage.base_uri}/job/chk-2")


def test_a_directory_without_metadata_suggests_the_file(storage: CheckpointStorage) -> None:
    with pytest.raises(CheckpointNotFoundError, match="point at the metadata file"):
        resolve_checkpoint(storage, f"{storage.base_uri}/job/empty")
