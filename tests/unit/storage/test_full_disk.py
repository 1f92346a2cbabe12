"""A filesystem that is really full: a small tmpfs in a mount namespace of a child process."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

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
        storage.write_bytes(f"{storage.base_uri}/old" if overwrite else f"{storage.base_uri}/new", b"n" * 600_000, overwrite=overwrite)
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
