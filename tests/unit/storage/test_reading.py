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
    StorageError,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.state_files import read_state


class TestReading:
    def test_missing_file_is_named(self, storage: CheckpointStorage, job: str) -> None:
        for read in (storage.read_bytes, storage.size):
            with pytest.raises(CheckpointNotFoundError) as caught:
                read(f"{job}/nothing")
            assert caught.value.uri == f"{job}/nothing"
            assert f"{job}/nothing" in str(caught.value)

    def test_missing_file_keeps_its_cause(self, storage: CheckpointStorage, job: str) -> None:
        with pytest.raises(CheckpointNotFoundError) as caught:
            storage.read_bytes(f"{job}/nothing")
        assert isinstance(caught.value.__cause__, FileNotFoundError)

    def test_range_is_a_slice(self, storage: CheckpointStorage, job: str) -> None:
        storage.write_bytes(f"{job}/f", b"0123456789")
        assert storage.read_range(f"{job}/f", 2, 5) == b"234"
        with pytest.raises(CheckpointNotFoundError):
            storage.read_range(f"{job}/nothing", 0, 1)

    def test_verified_bytes_come_back(self, storage: CheckpointStorage, job: str) -> None:
        storage.write_bytes(f"{job}/f", b"data")
        digest = hashlib.sha256(b"data").hexdigest()
        assert storage.read_verified(f"{job}/f", size=4, sha256=digest) == b"data"

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
        checksum = f" with {hashlib.sha256(found).hexdigest()[:12]}" if other else ""
        assert f"found {len(found)} bytes{checksum}" in str(caught.value)
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

    def test_length_that_was_recorded_wrongly_is_corrupt_too(self, storage: CheckpointStorage, job: str) -> None:
        storage.write_bytes(f"{job}/f", b"data")
        with pytest.raises(CorruptStateError, match="Expected 5 bytes"):
            storage.read_verified(f"{job}/f", size=5, sha256=hashlib.sha256(b"data").hexdigest())

    def test_verifying_a_missing_file_is_not_corruption(self, storage: CheckpointStorage, job: str) -> None:
        with pytest.raises(CheckpointNotFoundError):
            storage.read_verified(f"{job}/f", size=4, sha256="")

    def test_directory_is_no_file(self, storage: CheckpointStorage, job: str) -> None:
        storage.write_bytes(f"{job}/d/f", b"x")
        with pytest.raises(CheckpointNotFoundError):
            storage.size(f"{job}/d")
        with pytest.raises((StorageError, CheckpointNotFoundError)):
            storage.read_bytes(f"{job}/d")


class TestLooking:
    def test_files_and_directories_exist(self, storage: CheckpointStorage, job: str) -> None:
        storage.write_bytes(f"{job}/d/f", b"x")
        assert storage.exists(f"{job}/d/f")
        assert storage.exists(f"{job}/d")
        assert not storage.exists(f"{job}/e")
        assert not storage.exists(f"{job}/d/f/below-a-file")
        assert storage.is_directory(f"{job}/d")
        assert not storage.is_directory(f"{job}/d/f")
        assert not storage.is_directory(f"{job}/e")

    def test_list_files_is_recursive_with_sizes(self, storage: CheckpointStorage, job: str) -> None:
        for name in ("a", "d/b", "d/e/c"):
            storage.write_bytes(f"{job}/x/{name}", name.encode())
        storage.write_bytes(f"{job}/xy", b"a neighbour")
        expected = {"a": 1, "d/b": 3, "d/e/c": 5}
        assert storage.list_files(f"{job}/x") == expected == storage.list_files(f"{job}/x/")

    def test_file_lists_nothing(self, storage: CheckpointStorage, job: str) -> None:
        storage.write_bytes(f"{job}/f", b"x")
        assert storage.list_files(f"{job}/f") == {}
        assert storage.list_directories(f"{job}/f") == []

    def test_list_directories_is_one_level_without_files(self, storage: CheckpointStorage, job: str) -> None:
        for name in ("chk-2/f", "chk-1/deep/er/f", "file"):
            storage.write_bytes(f"{job}/{name}", b"x")
        assert storage.list_directories(job) == ["chk-1", "chk-2"]

    def test_files_of_other_writers_are_seen_at_once(self, tmp_path: Path) -> None:
        one, two = (CheckpointStorage.open(str(tmp_path)) for _ in range(2))
        job = f"{one.base_uri}/{'a' * 32}"
        assert one.list_files(job) == {}
        assert not one.exists(f"{job}/f")
        two.write_bytes(f"{job}/f", b"x")
        assert one.list_files(job) == {"f": 1}
        assert one.exists(f"{job}/f")

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
