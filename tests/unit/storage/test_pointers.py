from __future__ import annotations

from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from airflow_provider_statecheck.checkpoint.messages import RestoreSource
from airflow_provider_statecheck.checkpoint.properties import RestoreMode
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    InvalidConfigurationError,
    InvalidPointerError,
    PointerNotFoundError,
    StorageError,
)
from airflow_provider_statecheck.gateway.verbs import decode_error, encode_error
from airflow_provider_statecheck.operators.checkpointed import A_RETRY_CANNOT_HELP
from airflow_provider_statecheck.storage.failures import RetryPolicy
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.pointers import NOT_ADDRESSABLE, find_source, pointer_uri, resolve_checkpoint
from tests.unit.written_stage import WrittenStage


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
    assert found.external_pointer == f"{storage.base_uri}/job/chk-1"
    assert found.metadata_uri == f"{storage.base_uri}/job/chk-1/_metadata"


def test_a_file_is_metadata_whatever_its_name(storage: CheckpointStorage) -> None:
    pointer = f"{storage.base_uri}/job/chk-1/copy"
    assert resolve_checkpoint(storage, pointer).metadata_uri == pointer


@pytest.mark.parametrize("pointer", [None, 7, "", "  "])
def test_no_pointer_is_an_argument_error(storage: CheckpointStorage, pointer: str | None) -> None:
    for refuse in (lambda: resolve_checkpoint(storage, pointer), lambda: pointer_uri(pointer)):
        with pytest.raises(InvalidConfigurationError, match="URI of a checkpoint"):
            refuse()


@pytest.mark.parametrize("pointer", ["null", "None", " NULL "])
def test_what_a_template_writes_for_a_missing_value_is_told(pointer: str) -> None:
    with pytest.raises(InvalidConfigurationError, match="a template writes for a missing value"):
        pointer_uri(pointer)


@pytest.mark.parametrize("pointer", ["garbage", "chk-7", "s3:lake"])
def test_what_is_neither_a_uri_nor_a_path_is_refused_before_a_storage_is_asked(pointer: str) -> None:
    with pytest.raises(InvalidPointerError, match="Expected a URI"):
        pointer_uri(pointer)


def test_a_path_is_a_pointer_of_this_machine(storage: CheckpointStorage, tmp_path: Path) -> None:
    assert pointer_uri(tmp_path / "job" / "chk-1") == f"{storage.base_uri}/job/chk-1"
    assert pointer_uri(f" {tmp_path}/job/chk-1/ ") == f"{storage.base_uri}/job/chk-1"


def test_the_symbol_of_a_checkpoint_in_memory_says_what_it_is(storage: CheckpointStorage) -> None:
    with pytest.raises(InvalidPointerError, match="kept in the memory of its process"):
        resolve_checkpoint(storage, NOT_ADDRESSABLE)


def test_a_pointer_into_the_memory_of_another_process_says_that_it_is_gone(storage: CheckpointStorage) -> None:
    with pytest.raises(PointerNotFoundError, match="lost when the process that wrote them ends"):
        resolve_checkpoint(storage, "memory://of-another-process/chk-1")


def begun_from(stage: WrittenStage, pointer: str) -> RestoreSource:
    source = find_source(
        stage.storage, pointer, uid="x", mode=RestoreMode.NO_CLAIM, renamed_uids={}, allow_non_restored_state=False
    )
    assert source is not None
    return source


def test_an_unknown_savepoint_is_not_tried_again(storage: CheckpointStorage) -> None:
    stage = WrittenStage(storage)
    missing = begun_from(stage, f"{storage.base_uri}/savepoint-gone")
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
    unavailable = begun_from(stage, "down://lake/savepoint-1")
    with pytest.raises(StorageError, match="savepoint-1") as caught:
        stage.attempt("new", restore_from=unavailable)
    arrived = decode_error(encode_error(caught.value))
    assert arrived.retryable
    assert not isinstance(arrived, A_RETRY_CANNOT_HELP)


def test_text_that_is_no_uri_is_said_to_be_none(storage: CheckpointStorage) -> None:
    with pytest.raises(StorageError, match="Expected a URI"):
        resolve_checkpoint(storage, "<checkpoint-not-externally-addressable>")


def test_a_missing_path_is_not_found(storage: CheckpointStorage) -> None:
    with pytest.raises(CheckpointNotFoundError, match="found nothing there"):
        resolve_checkpoint(storage, f"{storage.base_uri}/job/chk-2")


def test_a_directory_without_metadata_suggests_the_file(storage: CheckpointStorage) -> None:
    with pytest.raises(CheckpointNotFoundError, match="point at the metadata file"):
        resolve_checkpoint(storage, f"{storage.base_uri}/job/empty")
