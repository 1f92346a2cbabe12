from __future__ import annotations

from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, InvalidConfigurationError, StorageError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.pointers import ResolvedPointer, resolve_checkpoint


def test_directory_with_and_without_slash_and_its_file_are_one_checkpoint(storage: CheckpointStorage, job: str) -> None:
    directory = f"{job}/chk-3"
    storage.write_bytes(f"{directory}/_metadata", b"x")
    expected = ResolvedPointer(directory, FileStateHandle(f"{directory}/_metadata", 1), storage)
    for pointer in (directory, f"{directory}/", f"{directory}//", f" {directory} ", f"{directory}/_metadata"):
        assert resolve_checkpoint(storage, pointer) == expected


def test_file_is_taken_whatever_its_name(storage: CheckpointStorage, job: str) -> None:
    storage.write_bytes(f"{job}/kept/copy of metadata.bin", b"x")
    found = resolve_checkpoint(storage, f"{job}/kept/copy of metadata.bin")
    assert (found.metadata_uri, found.external_pointer) == (f"{job}/kept/copy of metadata.bin", f"{job}/kept")


def test_pointer_may_lie_outside_the_base_and_on_another_filesystem(
    local: CheckpointStorage, memory: CheckpointStorage
) -> None:
    directory = f"{memory.base_uri}/{'b' * 32}/chk-1"
    memory.write_bytes(f"{directory}/_metadata", b"x")
    assert resolve_checkpoint(local, directory).external_pointer == directory


@pytest.mark.parametrize("pointer", ["chk-3", "/data/chk-3", "<checkpoint-not-externally-addressable>", "file:///"])
def test_text_that_is_no_uri_may_stem_from_another_backend(memory: CheckpointStorage, pointer: str) -> None:
    with pytest.raises(StorageError, match="Expected a URI"):
        resolve_checkpoint(memory, pointer)


def test_missing_path_is_named_with_its_scheme(storage: CheckpointStorage, job: str) -> None:
    with pytest.raises(CheckpointNotFoundError, match="found nothing there") as caught:
        resolve_checkpoint(storage, f"{job}/chk-9")
    assert f"{job}/chk-9" in str(caught.value)
    assert caught.value.uri == f"{job}/chk-9"


def test_storage_that_does_not_answer_is_not_a_missing_checkpoint() -> None:
    class Down(MemoryFileSystem):  # type: ignore[misc]
        def info(self, path: str, **_: object) -> dict[str, object]:
            raise PermissionError(path)

    with pytest.raises(StorageError):
        resolve_checkpoint(CheckpointStorage(Down(), "memory://down"), "memory://down/chk-1")


def test_unknown_scheme_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigurationError, match="nosuch"):
        resolve_checkpoint(CheckpointStorage.open(str(tmp_path)), "nosuch://x/chk-1")
