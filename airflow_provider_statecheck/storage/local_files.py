"""Publishing a local file so that it is there whole or not at all, whatever happens in between."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def publish(path: Path, data: bytes, *, overwrite: bool) -> None:
    """
    Write a file by way of a hidden sibling, durable before it becomes visible.

    :raises FileExistsError: if the file is there and is not to be overwritten.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{uuid.uuid4().hex}.tmp"
    try:
        _write_durably(temporary, data)
        if overwrite:
            temporary.replace(path)
        else:
            os.link(temporary, path)
        _sync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
