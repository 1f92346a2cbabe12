"""Reading, listing and deleting files, and errors of the storage."""

from __future__ import annotations

import errno
import hashlib
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CorruptStateError,
    InvalidConfigurationError,
    StorageError,
)
from airflow_provider_statecheck.storage.failures import RetryPolicy
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.state_files import read_state
from tests.unit.written_stage import local_path


class TestReading:
    def test_file_in_place_of_a_directory_above_makes_files_missing(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        storage = CheckpointStorage.open(str(tmp_path / "file"))
        uri = f"{storage.base_uri}/{'0' * 32}/chk-1/_metadata"
        with pytest.raises(CheckpointNotFoundError, match="found none"):
            storage.read_bytes(uri)
        storage.delete_file(uri)
        storage.delete_directory(uri.rpartition("/")[0])
        assert (storage.exists(uri), storage.list_files(uri)) == (False, {})

    def test_missing_file_is_named_and_is_no_corruption(self, storage: CheckpointStorage, job: str) -> None:
        uri = f"{job}/nothing"
        for read in (storage.read_bytes, storage.size, lambda uri: storage.read_verified(uri, size=4, sha256="")):
            with pytest.raises(CheckpointNotFoundError) as caught:
                read(uri)
            assert caught.value.uri == uri
            assert uri in str(caught.value)
        with pytest.raises(CheckpointNotFoundError) as caught:
            storage.read_bytes(uri)
        assert isinstance(caught.value.__cause__, FileNotFoundError)

    @pytest.mark.parametrize("found", [b"datA", b"dat", b"data1", b""])
    def test_changed_bytes_are_corrupt_and_both_sides_are_told(
        self, storage: CheckpointStorage, job: str, found: bytes
    ) -> None:
        storage.write_bytes(f"{job}/f", found)
        digest = hashlib.sha256(b"data").hexdigest()
        with pytest.raises(CorruptStateError) as caught:
            storage.read_verified(f"{job}/f", size=4, sha256=digest)
        other = len(found) == 4
        assert f"Expected 4 bytes{f' with sha256 {digest[:12]}' if other else ''}" in str(caught.value)
        checksum = " with another one" if other else ""
        assert f"found {len(found)} bytes{checksum}" in str(caught.value)
        assert hashlib.sha256(found).hexdigest()[:8] not in str(caught.value)
        assert not caught.value.retryable

    def test_a_file_that_is_larger_than_declared_is_not_read(self, storage: CheckpointStorage, job: str) -> None:
        storage.write_bytes(f"{job}/f", bytes(50_000_000))
        digest = hashlib.sha256(b"data").hexdigest()
        for read in (
            lambda: storage.read_verified(f"{job}/f", size=4, sha256=digest),
            lambda: read_state(storage, FileStateHandle(f"{job}/f", 4, digest)),
        ):
            tracemalloc.start()
            try:
                with pytest.raises(CorruptStateError, match="found 50000000 bytes"):
                    read()
                assert tracemalloc.get_traced_memory()[1] < 1_000_000
            finally:
                tracemalloc.stop()

    def test_an_empty_file_is_verified_too(self, storage: CheckpointStorage, job: str) -> None:
        storage.write_bytes(f"{job}/f", b"")
        assert storage.read_verified(f"{job}/f", size=0, sha256=hashlib.sha256(b"").hexdigest()) == b""

    def test_directory_is_no_file(self, storage: CheckpointStorage, job: str) -> None:
        storage.write_bytes(f"{job}/d/f", b"x")
        with pytest.raises((StorageError, CheckpointNotFoundError)):
            storage.read_bytes(f"{job}/d")


class TestLooking:
    def test_nothing_exists_below_a_file(self, storage: CheckpointStorage, job: str) -> None:
        storage.write_bytes(f"{job}/d/f", b"x")
        assert not storage.exists(f"{job}/d/f/below-a-file")

    def test_slash_at_the_end_of_a_directory_changes_nothing(self, storage: CheckpointStorage, job: str) -> None:
        for name in ("a", "d/e/c"):
            storage.write_bytes(f"{job}/x/{name}", name.encode())
        assert storage.list_files(f"{job}/x/") == {"a": 1, "d/e/c": 5}

    def test_file_lists_nothing(self, storage: CheckpointStorage, job: str) -> None:
        storage.write_bytes(f"{job}/f", b"x")
        assert storage.list_files(f"{job}/f") == {}
        assert storage.list_directories(f"{job}/f") == []

    def test_list_directories_is_one_level_without_files(self, storage: CheckpointStorage, job: str) -> None:
        for name in ("chk-2/f", "chk-1/deep/er/f", "file"):
            storage.write_bytes(f"{job}/{name}", b"x")
        assert storage.list_directories(job) == ["chk-1", "chk-2"]

    def test_directory_that_was_moved_away_and_linked_is_listed(self, local: CheckpointStorage, tmp_path: Path) -> None:
        (tmp_path / "other disk" / "job").mkdir(parents=True)
        base = local_path(local.base_uri)
        base.mkdir(parents=True, exist_ok=True)
        (base / "job").symlink_to(tmp_path / "other disk" / "job")
        (base / "gone").symlink_to(tmp_path / "nowhere")
        assert local.list_directories(local.base_uri) == ["job"]

    def test_marker_of_the_directory_itself_is_not_in_it(self) -> None:
        class WithMarkers(MemoryFileSystem):  # type: ignore[misc]
            def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
                return [
                    {"name": f"{path}/", "size": 0, "type": "directory"},
                    {"name": f"{path}/chk-1/", "size": 0, "type": "directory"},
                ]

        assert CheckpointStorage(WithMarkers(), "memory://m").list_directories("memory://m/job") == ["chk-1"]

    def test_unreadable_part_is_an_error_not_a_shorter_list(
        self, local: CheckpointStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A file that cannot be listed for a moment must not be taken for lost."""
        local.write_bytes(f"{local.base_uri}/d/bad/f", b"x")
        scandir = os.scandir

        def failing(path: Any) -> Any:
            if str(path).endswith("/bad"):
                raise PermissionError(errno.EACCES, "no")
            return scandir(path)

        monkeypatch.setattr(os, "scandir", failing)
        with pytest.raises(StorageError):
            local.list_files(f"{local.base_uri}/d")

    def test_directory_that_vanishes_while_listing_is_left_out(
        self, local: CheckpointStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        local.write_bytes(f"{local.base_uri}/d/_temporary/f", b"x")
        local.write_bytes(f"{local.base_uri}/d/g", b"x")
        scandir = os.scandir

        def vanished(path: Any) -> Any:
            if str(path).endswith("/_temporary"):
                raise FileNotFoundError(path)
            return scandir(path)

        monkeypatch.setattr(os, "scandir", vanished)
        assert local.list_files(f"{local.base_uri}/d") == {"g": 1}


class TestDeleting:
    def test_job_directory_stays_when_its_last_checkpoint_goes(self, local: CheckpointStorage) -> None:
        job = f"{local.base_uri}/{'a' * 32}"
        for name in ("f", "a/b/c", ".left.tmp"):
            local.write_bytes(f"{job}/chk-1/{name}", b"x")
        local.delete_directory(f"{job}/chk-1/")
        assert local_path(job).is_dir()
        assert list(local_path(job).iterdir()) == []

    def test_empty_directory_goes(self, local: CheckpointStorage) -> None:
        directory = local_path(local.base_uri) / ("a" * 32) / "chk-1" / "empty"
        directory.mkdir(parents=True)
        local.delete_directory(f"file://{directory.parent}")
        assert not directory.parent.exists()

    def test_nothing_but_a_checkpoint_or_snapshot_can_be_deleted(self, storage: CheckpointStorage, job: str) -> None:
        storage.write_bytes(f"{job}/chk-1/f", b"x")
        root = storage.base_uri.rpartition("/")[0]
        for uri in (
            root,
            storage.base_uri,
            job,
            f"{job}/",
            f"{job}/.",
            f"{job}/chk-1/..",
            f"{job}/*",
            f"{job}//",
            f"{job}/shared",
        ):
            for delete in (storage.delete_directory, storage.delete_file):
                with pytest.raises(InvalidConfigurationError, match="nothing was deleted"):
                    delete(uri)
        assert storage.list_files(storage.base_uri) == {f"{'0123456789abcdef' * 2}/chk-1/f": 1}

    def test_snapshot_goes_and_those_beside_it_stay(self, storage: CheckpointStorage, job: str) -> None:
        step = f"{job}/shared/{'b' * 32}/raw-1a"
        for name in ("1-a/data/part-0", "1-a/data/.part-0.crc", "1-a/_manifest", "2-b/_manifest"):
            storage.write_bytes(f"{step}/{name}", b"x")
        storage.delete_directory(f"{step}/1-a")
        assert storage.list_files(step) == {"2-b/_manifest": 1}

    def test_link_to_a_directory_is_deleted_without_what_it_points_at(
        self, local: CheckpointStorage, tmp_path: Path
    ) -> None:
        precious = tmp_path / "precious"
        precious.mkdir()
        (precious / "f").write_bytes(b"x")
        job = local_path(local.base_uri) / ("a" * 32)
        (job / "chk-1").mkdir(parents=True)
        (job / "chk-1" / "inner").symlink_to(precious)
        (job / "chk-2").symlink_to(precious)
        local.delete_directory(f"file://{job}/chk-1")
        local.delete_directory(f"file://{job}/chk-2")
        assert list(job.iterdir()) == []
        assert (precious / "f").read_bytes() == b"x"


class _Down(MemoryFileSystem):  # type: ignore[misc]
    """A storage that does not answer; its errors are of the client's own kind and carry a secret."""

    cachable = False

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise self._error

    info = cat_file = open = pipe_file = find = ls = rm = rm_file = _fail


class TestErrors:
    @pytest.mark.parametrize(
        "error",
        [
            OSError("memory://key:secret@down is gone"),
            PermissionError("memory://key:secret@down"),
            TimeoutError("memory://key:secret@down"),
            RuntimeError("memory://key:secret@down, from a client that has its own errors"),
        ],
        ids=lambda e: type(e).__name__,
    )
    @pytest.mark.parametrize(
        "call",
        [
            lambda s, u: s.write_bytes(u, b"x"),
            lambda s, u: s.write_bytes(u, b"x", overwrite=True),
            lambda s, u: s.read_bytes(u),
            lambda s, u: s.read_range(u, 0, 1),
            lambda s, u: s.read_verified(u, size=1, sha256=""),
            lambda s, u: s.exists(u),
            lambda s, u: s.is_directory(u),
            lambda s, u: s.size(u),
            lambda s, u: s.list_files(u),
            lambda s, u: s.list_directories(u),
            lambda s, u: s.delete_file(u),
            lambda s, u: s.delete_directory(u),
        ],
        ids=[
            "write",
            "overwrite",
            "read",
            "range",
            "verified",
            "exists",
            "isdir",
            "size",
            "files",
            "dirs",
            "rm",
            "rmdir",
        ],
    )
    def test_storage_that_does_not_answer_is_a_storage_error_without_a_secret_in_it_or_its_cause(
        self, call: Any, error: Exception
    ) -> None:
        storage = CheckpointStorage(_Down(error), "memory://key:secret@down", retries=RetryPolicy(attempts=1))
        uri = f"memory://key:secret@down/{'a' * 32}/chk-1/f"
        with pytest.raises(StorageError) as caught:
            call(storage, uri)
        assert type(caught.value) is StorageError
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__
        assert "secret" not in str(caught.value)
        assert caught.value.uri == f"memory://***@down/{'a' * 32}/chk-1/f"
        assert "chk-1/f" in str(caught.value)

    def test_cause_without_a_secret_is_kept(self) -> None:
        error = OSError("the disk is gone")
        storage = CheckpointStorage(_Down(error), "memory://down", retries=RetryPolicy(attempts=1))
        with pytest.raises(StorageError) as caught:
            storage.exists("memory://down/f")
        assert caught.value.__cause__ is error
