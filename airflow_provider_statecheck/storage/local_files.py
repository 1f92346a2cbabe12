"""Local files: published whole or not at all whatever happens in between, and listed completely or not at all."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def publish(path: Path, data: bytes, *, overwrite: bool) -> None:
    """
    Write a file by way of a hidden sibling, durable before it becomes visible.

    :raises FileExistsError: if the file is there and is not to be overwritten.
    """
    with _sibling(path) as temporary:
        _write_durably(temporary, data)
        if overwrite:
            temporary.replace(path)
        else:
            os.link(temporary, path)
        sync(path.parent)


def make_new_directory(path: Path) -> None:
    """
    Make a directory that was not there, durably, with those that it lies in.

    :raises FileExistsError: if it is there.
    """
    make_directory(path.parent)
    path.mkdir()
    sync(path.parent)


@contextmanager
def publishing(path: Path) -> Iterator[Path]:
    """Give a hidden sibling to be written, which becomes the file, durably, when all went well; what was there is replaced."""
    with _sibling(path) as temporary:
        yield temporary
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)


@contextmanager
def _sibling(path: Path) -> Iterator[Path]:
    make_directory(path.parent)
    temporary = path.parent / f".{uuid.uuid4().hex}.tmp"
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def list_files(directory: Path) -> dict[str, int]:
    """
    Return the size of each file below a directory by its relative path; nothing if it is missing.

    :raises OSError: if part of it cannot be read. fsspec would leave that part out, and files that cannot be read for a
        moment would be taken for lost.
    """
    found: dict[str, int] = {}
    for parent, _, names in os.walk(directory, onerror=_raise_unless_missing):
        for name in names:
            path = Path(parent, name)
            with suppress(FileNotFoundError):
                found[path.relative_to(directory).as_posix()] = path.stat().st_size
    return found


def _raise_unless_missing(error: OSError) -> None:
    # Writers rename and delete their temporary directories while others list.
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def remove_empty_directories(directory: Path) -> None:
    """Remove a directory and those below it, as far as they hold no file."""
    for parent, _, _ in os.walk(directory, topdown=False):
        # The filesystem refuses to remove a directory that a writer has filled in the meantime.
        with suppress(OSError):
            Path(parent).rmdir()


def make_directory(path: Path) -> None:
    """Make a directory, and those above it, so that they outlast a power failure."""
    missing = [p for p in (path, *path.parents) if not p.exists()]
    path.mkdir(parents=True, exist_ok=True)
    # A durable file in a directory that a power failure takes away is not durable.
    for made in reversed(missing):
        sync(made.parent)


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
