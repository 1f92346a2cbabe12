from __future__ import annotations

import hashlib
import os
import uuid
from pathlib import Path

import pytest

from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CorruptStateError,
    InvalidConfigurationError,
    StorageError,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import normalise_base, redact

JOB = "0123456789abcdef0123456789abcdef"


@pytest.fixture(params=["file", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStorage:
    return CheckpointStorage.open(str(tmp_path) if request.param == "file" else f"memory://{uuid.uuid4().hex}")


@pytest.fixture
def uri(storage: CheckpointStorage) -> str:
    return f"{storage.base_uri}/{JOB}/chk-1/_metadata"


def test_what_was_written_is_read(storage: CheckpointStorage, uri: str) -> None:
    storage.write_bytes(uri, b"state")
    assert storage.read_bytes(uri) == b"state"
    assert storage.read_range(uri, 1, 3) == b"ta"
    assert storage.exists(uri)


def test_the_same_bytes_may_be_written_again(storage: CheckpointStorage, uri: str) -> None:
    storage.write_bytes(uri, b"state")
    storage.write_bytes(uri, b"state")
    assert storage.read_bytes(uri) == b"state"


def test_other_bytes_never_replace_a_file_silently(storage: CheckpointStorage, uri: str) -> None:
    storage.write_bytes(uri, b"state")
    with pytest.raises(StorageError, match="two writers"):
        storage.write_bytes(uri, b"other")
    assert storage.read_bytes(uri) == b"state"


def test_overwriting_is_possible_where_it_is_asked_for(storage: CheckpointStorage, uri: str) -> None:
    storage.write_bytes(uri, b"state")
    storage.write_bytes(uri, b"other", overwrite=True)
    assert storage.read_bytes(uri) == b"other"


def test_missing_file_is_not_found(storage: CheckpointStorage, uri: str) -> None:
    with pytest.raises(CheckpointNotFoundError, match="_metadata"):
        storage.read_bytes(uri)


@pytest.mark.parametrize("changed", [b"stats", b"stat", b"state "], ids=["flipped", "shorter", "longer"])
def test_changed_bytes_are_noticed(storage: CheckpointStorage, uri: str, changed: bytes) -> None:
    storage.write_bytes(uri, changed)
    with pytest.raises(CorruptStateError, match="was changed"):
        storage.read_verified(uri, size=5, sha256=hashlib.sha256(b"state").hexdigest())


def test_listing_gives_relative_names_and_sizes(storage: CheckpointStorage, uri: str) -> None:
    storage.write_bytes(uri, b"state")
    storage.write_bytes(f"{storage.base_uri}/{JOB}/shared/op/x/1-a/data/part", b"12")
    root = f"{storage.base_uri}/{JOB}"
    assert storage.list_files(root) == {"chk-1/_metadata": 5, "shared/op/x/1-a/data/part": 2}
    assert storage.list_directories(root) == ["chk-1", "shared"]


def test_a_missing_directory_lists_as_empty(storage: CheckpointStorage) -> None:
    assert storage.list_files(f"{storage.base_uri}/{JOB}") == {}
    assert storage.list_directories(f"{storage.base_uri}/{JOB}") == []


def test_deleting_what_is_gone_is_success(storage: CheckpointStorage, uri: str) -> None:
    storage.write_bytes(uri, b"state")
    for _ in range(2):
        storage.delete_file(uri)
        storage.delete_directory(uri.rpartition("/")[0])
    assert not storage.exists(uri)


@pytest.mark.parametrize(
    "place", ["", f"/{JOB}", "/other/deep/inside", f"/{JOB}/chk-1/../x", f"/{JOB}/shared", f"/{JOB}/shared/{JOB}"]
)
def test_nothing_but_a_checkpoint_or_a_snapshot_is_ever_deleted(
    storage: CheckpointStorage, uri: str, place: str
) -> None:
    storage.write_bytes(uri, b"state")
    with pytest.raises(InvalidConfigurationError, match="nothing was deleted"):
        storage.delete_directory(f"{storage.base_uri}{place}")
    assert storage.exists(uri)


def test_crash_before_publishing_leaves_neither_file_nor_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = CheckpointStorage.open(str(tmp_path))
    uri = f"{storage.base_uri}/{JOB}/chk-1/_metadata"

    def fail(source: object, target: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(StorageError, match="no space left"):
        storage.write_bytes(uri, b"state")
    assert list((tmp_path / JOB / "chk-1").iterdir()) == []


@pytest.mark.parametrize("base", ["", "  ", "s3://", "memory://"])
def test_a_base_that_names_no_directory_is_refused(base: str) -> None:
    with pytest.raises(InvalidConfigurationError, match="Expected checkpoint_dir"):
        CheckpointStorage.open(base)


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(InvalidConfigurationError, match="nowhere"):
        CheckpointStorage.open("nowhere://a/b")


def test_paths_become_absolute_uris(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert normalise_base("a/b/") == f"file://{tmp_path}/a/b"
    assert normalise_base("file:///a//") == "file:///a"
    assert normalise_base("s3://bucket/x/") == "s3://bucket/x"


def test_credentials_never_reach_a_message() -> None:
    assert redact("s3://key:secret@host/bucket") == "s3://***@host/bucket"
