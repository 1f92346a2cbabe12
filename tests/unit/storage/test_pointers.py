"""From a pointer to the metadata of a checkpoint of any job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.exceptions import (
    A_RETRY_CANNOT_HELP,
    CheckpointNotFoundError,
    CorruptStateError,
    InvalidConfigurationError,
    InvalidPointerError,
    PointerNotFoundError,
    StorageError,
)
from airflow_provider_statecheck.gateway.verbs import decode_error, encode_error
from airflow_provider_statecheck.storage.failures import RetryPolicy
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.pointers import pointer_uri, resolve_checkpoint
from airflow_provider_statecheck.storage.views.state_files import read_state
from airflow_provider_statecheck.storage.views.state_streams import ResolvedPointer
from tests.messages import source_at
from tests.unit.written_stage import WrittenStage


def test_directory_with_and_without_slash_and_its_file_are_one_checkpoint(storage: CheckpointStorage, job: str) -> None:
    directory = f"{job}/chk-3"
    storage.write_bytes(f"{directory}/_metadata", b"x")
    expected = ResolvedPointer(directory, FileStateHandle(f"{directory}/_metadata", 1), storage)
    for pointer in (directory, f"{directory}/", f"{directory}//", f" {directory} ", f"{directory}/_metadata"):
        assert resolve_checkpoint(storage, pointer) == expected


def test_a_file_is_metadata_whatever_its_name(storage: CheckpointStorage, job: str) -> None:
    storage.write_bytes(f"{job}/kept/copy of metadata.bin", b"x")
    found = resolve_checkpoint(storage, f"{job}/kept/copy of metadata.bin")
    assert (found.metadata_handle.uri, found.external_pointer) == (f"{job}/kept/copy of metadata.bin", f"{job}/kept")


def test_metadata_of_another_checkpoint_is_not_read_in_place_of_the_one_of_a_pointer(
    tmp_path: Path,
) -> None:
    stage = WrittenStage(CheckpointStorage.open(str(tmp_path / "base")))
    attempt = stage.attempt()
    first, second = (stage.take(attempt, stage.snapshot(attempt, "raw")) for _ in range(2))
    other = Path(second.location.removeprefix("file://")) / "_metadata"
    data = (Path(first.location.removeprefix("file://")) / "_metadata").read_bytes()
    other.write_bytes(data)
    assert resolve_checkpoint(stage.storage, first.location).read()[0].checkpoint_id == first.checkpoint_id
    with pytest.raises(
        CorruptStateError, match=rf"chk-{second.checkpoint_id} in .*found that of .*/chk-{first.checkpoint_id};"
    ):
        resolve_checkpoint(stage.storage, second.location).read()
    moved = f"{stage.storage.base_uri}/moved"
    stage.storage.write_bytes(f"{moved}/_metadata", data)
    assert resolve_checkpoint(stage.storage, moved).read()[0].checkpoint_id == first.checkpoint_id


def test_a_pointer_may_lead_to_another_filesystem(local: CheckpointStorage, memory: CheckpointStorage) -> None:
    directory = f"{memory.base_uri}/{'b' * 32}/chk-1"
    memory.write_bytes(f"{directory}/_metadata", b"meta")
    found = resolve_checkpoint(local, directory)
    assert found.external_pointer == directory
    assert read_state(found.storage, found.metadata_handle) == b"meta"


def test_what_was_resolved_can_be_disposed_of(storage: CheckpointStorage, job: str) -> None:
    storage.write_bytes(f"{job}/chk-2/_metadata", b"meta")
    resolve_checkpoint(storage, f"{job}/chk-2").dispose()
    assert storage.list_files(job) == {}


def test_a_directory_of_something_else_is_not_deleted(storage: CheckpointStorage, job: str) -> None:
    storage.write_bytes(f"{job}/kept/_metadata", b"meta")
    with pytest.raises(InvalidConfigurationError, match="nothing was deleted"):
        resolve_checkpoint(storage, f"{job}/kept").dispose()
    assert storage.list_files(job) == {"kept/_metadata": 4}


@pytest.mark.parametrize(("pointer", "found"), [(None, "found None"), (7, "found 7"), ("", "empty"), ("  ", "empty")])
def test_no_pointer_and_an_empty_one_are_told_apart(local: CheckpointStorage, pointer: Any, found: str) -> None:
    for refuse in (lambda: resolve_checkpoint(local, pointer), lambda: pointer_uri(pointer)):
        with pytest.raises(
            InvalidConfigurationError, match=f"URI of a checkpoint, found .*{found.removeprefix('found ')}"
        ):
            refuse()


@pytest.mark.parametrize("pointer", ["null", "None", " NULL "])
def test_what_a_template_writes_for_a_missing_value_is_told(pointer: str) -> None:
    with pytest.raises(InvalidConfigurationError, match="a template writes for a missing value"):
        pointer_uri(pointer)


@pytest.mark.parametrize("pointer", ["garbage", "chk-7", "s3:lake"])
def test_what_is_neither_a_uri_nor_a_path_is_refused_before_a_storage_is_asked(pointer: str) -> None:
    with pytest.raises(InvalidPointerError, match="Expected a URI"):
        pointer_uri(pointer)


def test_a_path_is_a_pointer_of_this_machine(tmp_path: Path) -> None:
    assert pointer_uri(tmp_path / "job" / "chk-1") == f"file://{tmp_path}/job/chk-1"
    assert pointer_uri(f" {tmp_path}/job/chk-1/ ") == f"file://{tmp_path}/job/chk-1"


@pytest.mark.parametrize("pointer", ["chk-3", "/data/chk-3", "<checkpoint-not-externally-addressable>", "file:///"])
def test_text_that_is_no_uri_may_stem_from_another_storage(memory: CheckpointStorage, pointer: str) -> None:
    with pytest.raises(StorageError, match=r"Expected a URI.*pointer of another storage"):
        resolve_checkpoint(memory, pointer)


def test_a_pointer_into_the_memory_of_another_process_says_that_it_is_gone(local: CheckpointStorage) -> None:
    with pytest.raises(PointerNotFoundError, match="lost when the process that wrote them ends"):
        resolve_checkpoint(local, "memory://of-another-process/chk-1")


def test_a_missing_path_is_named_with_its_scheme(storage: CheckpointStorage, job: str) -> None:
    with pytest.raises(CheckpointNotFoundError, match="found nothing there") as caught:
        resolve_checkpoint(storage, f"{job}/chk-9")
    assert caught.value.uri == f"{job}/chk-9"
    assert f"{job}/chk-9" in str(caught.value)
    assert f"filesystem of {job.partition('://')[0]}://" in str(caught.value)


def test_a_directory_without_metadata_suggests_the_file(storage: CheckpointStorage, job: str) -> None:
    storage.write_bytes(f"{job}/chk-9/x", b"")
    with pytest.raises(CheckpointNotFoundError, match="point at the metadata file"):
        resolve_checkpoint(storage, f"{job}/chk-9")


def test_storage_that_does_not_answer_is_not_a_missing_checkpoint() -> None:
    class Down(MemoryFileSystem):  # type: ignore[misc]
        def info(self, path: str, **_: object) -> dict[str, object]:
            raise PermissionError(path)

    with pytest.raises(StorageError):
        resolve_checkpoint(CheckpointStorage(Down(), "memory://down"), "memory://down/chk-1")


def test_unknown_scheme_is_refused(local: CheckpointStorage) -> None:
    with pytest.raises(InvalidConfigurationError, match="nosuch"):
        resolve_checkpoint(local, "nosuch://x/chk-1")


def test_an_unknown_savepoint_is_not_tried_again(local: CheckpointStorage) -> None:
    stage = WrittenStage(local)
    missing = source_at(local, f"{local.base_uri}/savepoint-gone")
    with pytest.raises(PointerNotFoundError, match="savepoint-gone") as caught:
        stage.attempt("new", restore_from=missing)
    arrived = decode_error(encode_error(caught.value))
    assert isinstance(arrived, A_RETRY_CANNOT_HELP)
    assert not arrived.retryable


def test_a_savepoint_on_a_storage_that_does_not_answer_is_tried_again(tmp_path: Path) -> None:
    class Down(MemoryFileSystem):  # type: ignore[misc]
        protocol = ("down",)

        def info(self, path: str, **_: object) -> dict[str, object]:
            raise TimeoutError(path)

    stage = WrittenStage(CheckpointStorage(Down(), "down://lake/checkpoints", retries=RetryPolicy(attempts=1)))
    unavailable = source_at(stage.storage, "down://lake/savepoint-1")
    with pytest.raises(StorageError, match="savepoint-1") as caught:
        stage.attempt("new", restore_from=unavailable)
    arrived = decode_error(encode_error(caught.value))
    assert arrived.retryable
    assert not isinstance(arrived, A_RETRY_CANNOT_HELP)
