"""Publishing files: atomic, durable, and on a disk that is full."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from airflow_provider_statecheck.exceptions import (
    InvalidConfigurationError,
    StorageError,
)
from airflow_provider_statecheck.storage import file_operations
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage


def _all_files(root: Path) -> set[str]:
    return {p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()}


def test_opening_creates_nothing(tmp_path: Path) -> None:
    storage = CheckpointStorage.open(str(tmp_path / "base"))
    assert storage.base_uri == f"file://{tmp_path}/base"
    assert storage.is_local
    assert list(tmp_path.iterdir()) == []


def test_memory_is_not_local(memory: CheckpointStorage) -> None:
    assert not memory.is_local


class TestWriting:
    def test_path_with_spaces_and_percent_signs_is_taken_as_it_stands(self, tmp_path: Path) -> None:
        base = tmp_path / "my files 100%20"
        storage = CheckpointStorage.open(str(base))
        storage.write_bytes(f"{storage.base_uri}/{'a' * 32}/chk-1/f", b"x")
        assert _all_files(base) == {f"{'a' * 32}/chk-1/f"}

    def test_uri_on_another_filesystem_goes_there(
        self, local: CheckpointStorage, memory: CheckpointStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Rows keep absolute URIs, which outlive a change of the checkpoint directory."""
        monkeypatch.chdir(tmp_path)
        uri = f"{memory.base_uri}/{'a' * 32}/chk-1/f"
        local.write_bytes(uri, b"x")
        assert memory.read_bytes(uri) == b"x" == local.allowing(uri).read_bytes(uri)
        local.delete_directory(f"{memory.base_uri}/{'a' * 32}/chk-1")
        assert not memory.exists(uri)
        memory.write_bytes(f"{local.base_uri}/{'a' * 32}/f", b"y")
        assert _all_files(tmp_path) == {f"base/{'a' * 32}/f"}

    @pytest.mark.parametrize("uri", ["", "/data/x", "data/x", "file:/data/x"])
    def test_what_is_no_absolute_uri_is_refused(self, local: CheckpointStorage, uri: str) -> None:
        with pytest.raises(InvalidConfigurationError, match="absolute URI"):
            local.write_bytes(uri, b"x")

    def test_directory_in_the_way_is_a_storage_error(self, local: CheckpointStorage, tmp_path: Path) -> None:
        (tmp_path / "base" / "d").mkdir(parents=True)
        for overwrite in (False, True):
            with pytest.raises(StorageError):
                local.write_bytes(f"{local.base_uri}/d", b"x", overwrite=overwrite)
        assert _all_files(tmp_path) == set()

    def test_file_in_place_of_a_parent_is_a_storage_error(self, local: CheckpointStorage, tmp_path: Path) -> None:
        (tmp_path / "base").write_bytes(b"a file")
        with pytest.raises(StorageError):
            local.write_bytes(f"{local.base_uri}/d/f", b"x")

    def test_missing_bucket_is_a_storage_error_not_a_missing_checkpoint(self) -> None:
        class NoBucket(MemoryFileSystem):  # type: ignore[misc]
            def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
                raise FileNotFoundError("no such bucket")

        with pytest.raises(StorageError, match="Cannot write"):
            CheckpointStorage(NoBucket(), "memory://nb").write_bytes("memory://nb/x", b"x")

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_an_upload_that_is_unknown_because_it_is_complete_is_success(self, overwrite: bool) -> None:
        """What a store may answer where the reply to the last request of an upload was lost."""

        class Forgetful(MemoryFileSystem):  # type: ignore[misc]
            def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
                super().pipe_file(path, value)
                raise FileNotFoundError("no such upload")

        storage = CheckpointStorage(Forgetful(), "memory://forgetful")
        storage.write_bytes("memory://forgetful/f", b"x", overwrite=overwrite)
        assert storage.read_bytes("memory://forgetful/f") == b"x"


class TestAtomicity:
    """A local file is there whole or not at all, whatever step fails, and nothing else is left."""

    @pytest.mark.parametrize("step", ["link", "fsync"])
    @pytest.mark.parametrize("error", [OSError(errno.EIO, "disk"), KeyboardInterrupt()], ids=["error", "interrupt"])
    def test_failure_before_the_file_is_visible_leaves_nothing(
        self,
        local: CheckpointStorage,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        step: str,
        error: BaseException,
    ) -> None:
        (tmp_path / "base" / "d").mkdir(parents=True)

        def fail(*_: Any) -> None:
            raise error

        monkeypatch.setattr(os, step, fail)
        with pytest.raises(StorageError if isinstance(error, OSError) else KeyboardInterrupt):
            local.write_bytes(f"{local.base_uri}/d/_metadata", b"whole")
        assert _all_files(tmp_path) == set()

    def test_failed_overwrite_keeps_the_old_file(
        self, local: CheckpointStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        local.write_bytes(f"{local.base_uri}/f", b"old")

        def fail(*_: Any) -> None:
            raise OSError(errno.EIO, "disk")

        monkeypatch.setattr(Path, "replace", fail)
        with pytest.raises(StorageError):
            local.write_bytes(f"{local.base_uri}/f", b"new", overwrite=True)
        assert local.read_bytes(f"{local.base_uri}/f") == b"old"
        assert _all_files(tmp_path) == {"base/f"}

    def test_write_may_be_repeated_after_a_failure_behind_the_commit_point(
        self, local: CheckpointStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        local.write_bytes(f"{local.base_uri}/other", b"")

        def fail(_: Path) -> None:
            raise OSError(errno.EIO, "disk")

        with monkeypatch.context() as patch:
            patch.setattr(file_operations, "sync", fail)
            with pytest.raises(StorageError):
                local.write_bytes(f"{local.base_uri}/f", b"x")
        local.write_bytes(f"{local.base_uri}/f", b"x")
        assert _all_files(tmp_path) == {"base/f", "base/other"}

    def test_only_a_hidden_temporary_is_there_before_the_commit_point(
        self, local: CheckpointStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[set[str]] = []
        link = os.link

        def spy(source: Path, target: Path) -> None:
            seen.append({p.name for p in target.parent.iterdir()})
            assert source.read_bytes() == b"whole"
            link(source, target)

        monkeypatch.setattr(os, "link", spy)
        local.write_bytes(f"{local.base_uri}/f", b"whole")
        ((name,),) = seen
        assert name.startswith(".")
        assert name.endswith(".tmp")

    def test_file_and_every_new_directory_are_synced_before_success(
        self, local: CheckpointStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced: list[int] = []
        fsync = os.fsync

        def spy(descriptor: int) -> None:
            synced.append(os.fstat(descriptor).st_ino)
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", spy)
        local.write_bytes(f"{local.base_uri}/a/b/f", b"x")
        base = tmp_path / "base"
        expected = [tmp_path, base, base / "a", base / "a/b/f", base / "a/b"]
        assert synced == [path.stat().st_ino for path in expected]

    @pytest.mark.parametrize("theirs", [b"mine", b"theirs"])
    def test_writer_that_was_faster_wins_and_equal_bytes_are_success(
        self, local: CheckpointStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theirs: bytes
    ) -> None:
        link = os.link

        def faster(source: Path, target: Path) -> None:
            target.write_bytes(theirs)
            link(source, target)

        monkeypatch.setattr(os, "link", faster)
        uri = f"{local.base_uri}/f"
        if theirs == b"mine":
            local.write_bytes(uri, b"mine")
        else:
            with pytest.raises(StorageError, match="two writers"):
                local.write_bytes(uri, b"mine")
        assert local.read_bytes(uri) == theirs
        assert _all_files(tmp_path) == {"base/f"}

    def test_object_store_gets_the_whole_object_in_one_call(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A stream left by an exception would publish the half object."""
        filesystem = MemoryFileSystem()

        def refuse(*_: Any, **__: Any) -> None:
            raise AssertionError("a stream was opened")

        puts: list[tuple[str, bytes, str]] = []
        monkeypatch.setattr(filesystem, "open", refuse)
        monkeypatch.setattr(filesystem, "pipe_file", lambda path, data, mode: puts.append((path, data, mode)))
        CheckpointStorage(filesystem, "memory://one-put").write_bytes("memory://one-put/f", b"x")
        assert puts == [("/one-put/f", b"x", "create")]


_SIZE = 1024 * 1024
_IN_SMALL_FILESYSTEM = [
    "unshare",
    "-rm",
    "sh",
    "-c",
    f'mount -t tmpfs -o size={_SIZE} none "$1" && shift && exec "$@"',
    "sh",
]

_FILL = """
import sys
from pathlib import Path
from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

folder = Path(sys.argv[1])
storage = CheckpointStorage.open(folder.as_uri())
assert 0 < storage.free_bytes() <= 1024 * 1024
storage.write_bytes(f"{storage.base_uri}/old", b"o" * 600_000)
for overwrite in (False, True):
    try:
        name = "old" if overwrite else "new"
        storage.write_bytes(f"{storage.base_uri}/{name}", b"n" * 600_000, overwrite=overwrite)
    except StorageError as error:
        print(error)
    else:
        sys.exit("a full filesystem took the file")
storage.write_bytes(f"{storage.base_uri}/old", b"o" * 600_000)  # repeating needs no space
assert storage.read_bytes(f"{storage.base_uri}/old") == b"o" * 600_000
print(sorted(path.name for path in folder.iterdir()))
"""


def _can_mount(folder: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run([*_IN_SMALL_FILESYSTEM, str(folder), "true"], capture_output=True, check=False)
    return tried.returncode == 0


def test_a_full_filesystem_is_said_to_be_full_and_keeps_what_it_has(tmp_path: Path) -> None:
    if not _can_mount(tmp_path):
        pytest.skip("mount namespaces are not allowed here")
    command = [*_IN_SMALL_FILESYSTEM, str(tmp_path), sys.executable, "-c", _FILL, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    *messages, left = done.stdout.splitlines()
    assert len(messages) == 2
    assert all("no space left" in message for message in messages)
    assert left == "['old']"


def test_a_full_disk_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no mount is allowed, at least what the kernel says is told from what passes."""
    storage = CheckpointStorage.open(str(tmp_path))
    tries: list[int] = []

    def full(descriptor: int) -> None:
        tries.append(descriptor)
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="no space left"):
        storage.write_bytes(f"{storage.base_uri}/f", b"x")
    assert len(tries) == 1
    assert list(tmp_path.iterdir()) == []


def test_free_space_below_a_directory_that_is_not_there_yet_is_its_parents(tmp_path: Path) -> None:
    expected = shutil.disk_usage(tmp_path).free
    free = CheckpointStorage.open(str(tmp_path / "a" / "b")).free_bytes()
    assert free is not None
    assert abs(free - expected) < 2**30


def test_free_space_of_an_object_store_is_unknown() -> None:
    assert CheckpointStorage.open("memory://ck").free_bytes() is None
