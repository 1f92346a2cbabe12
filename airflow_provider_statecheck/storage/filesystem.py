"""
Checkpoint storage on any fsspec filesystem.

A file is published whole or not at all: a hidden sibling and a link on local files, one PUT on object stores. A stream is
never left by an exception, because several filesystems publish the half file then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, CorruptStateError, StorageError
from airflow_provider_statecheck.storage import local_files
from airflow_provider_statecheck.storage.schemes import open_filesystem
from airflow_provider_statecheck.storage.uris import normalise_base, redact, require_deletable


class CheckpointStorage:
    """
    Bytes by absolute URI.

    Writing the same bytes twice and deleting what is gone are both success, so that every step may be repeated.

    :param filesystem: The fsspec filesystem.
    :param base_uri: The checkpoint directory, normalised.
    """

    def __init__(self, filesystem: Any, base_uri: str) -> None:
        self._fs = filesystem
        self.base_uri = base_uri

    @classmethod
    def open(cls, base_uri: str, **storage_options: Any) -> Self:
        """
        Open the storage of a checkpoint directory; nothing is created yet.

        :param base_uri: A path or any fsspec URI.
        :param storage_options: Options of the filesystem.
        :raises InvalidConfigurationError: for a URI that is none, or whose filesystem is not installed.
        """
        base = normalise_base(base_uri)
        return cls(open_filesystem(base, storage_options), base)

    @property
    def is_local(self) -> bool:
        """Tell whether the bytes are files of this machine."""
        return self.base_uri.startswith("file://")

    def write_bytes(self, uri: str, data: bytes, *, overwrite: bool = False) -> None:
        """
        Publish a file.

        :param overwrite: Whether other bytes under this name may be replaced.
        :raises StorageError: if other bytes are there already, or the storage fails.
        """
        with _mapped(uri):
            if not overwrite and self._holds(uri, data):
                return
            if self.is_local:
                local_files.publish(Path(self._path(uri)), data, overwrite=overwrite)
            else:
                self._fs.pipe_file(self._path(uri), data)

    def read_bytes(self, uri: str) -> bytes:
        """
        Return a whole file.

        :raises CheckpointNotFoundError: if it is missing.
        :raises StorageError: if the storage fails.
        """
        with _mapped(uri):
            return bytes(self._fs.cat_file(self._path(uri)))

    def read_range(self, uri: str, start: int, end: int) -> bytes:
        """
        Return the bytes from ``start`` to before ``end``.

        :raises CheckpointNotFoundError: if the file is missing.
        :raises StorageError: if the storage fails.
        """
        with _mapped(uri):
            return bytes(self._fs.cat_file(self._path(uri), start=start, end=end))

    def read_verified(self, uri: str, *, size: int, sha256: str) -> bytes:
        """
        Return a whole file if it is what was written.

        :raises CorruptStateError: if length or checksum differ.
        :raises CheckpointNotFoundError: if it is missing.
        """
        data = self.read_bytes(uri)
        found = hashlib.sha256(data).hexdigest()
        if len(data) != size or found != sha256:
            raise CorruptStateError(
                f"Expected {size} bytes with sha256 {sha256[:12]}… in {redact(uri)}, found {len(data)} bytes with "
                f"{found[:12]}…; the file was changed after it was written.",
                uri=redact(uri),
            )
        return data

    def exists(self, uri: str) -> bool:
        """Tell whether a file or directory is there."""
        with _mapped(uri):
            return bool(self._fs.exists(self._path(uri)))

    def is_directory(self, uri: str) -> bool:
        """Tell whether a directory is there."""
        with _mapped(uri):
            return bool(self._fs.isdir(self._path(uri)))

    def list_files(self, directory: str) -> dict[str, int]:
        """Return the size in bytes of each file below a directory by its relative path; nothing if it is missing."""
        root = self._path(directory)
        with _mapped(directory):
            try:
                found = self._fs.find(root, detail=True)
            except FileNotFoundError:
                return {}
        return {_relative(path, root): int(info["size"]) for path, info in found.items()}

    def list_directories(self, directory: str) -> list[str]:
        """Return the names of the directories in a directory; nothing if it is missing."""
        with _mapped(directory):
            try:
                entries = self._fs.ls(self._path(directory), detail=True)
            except FileNotFoundError:
                return []
        return sorted(str(e["name"]).rstrip("/").rpartition("/")[2] for e in entries if e["type"] == "directory")

    def delete_file(self, uri: str) -> None:
        """Delete a file; a missing one is success."""
        require_deletable(uri)
        with _mapped(uri):
            try:
                self._fs.rm_file(self._path(uri))
            except FileNotFoundError:
                return

    def delete_directory(self, uri: str) -> None:
        """
        Delete a directory with all that is in it; a missing one is success.

        :raises InvalidConfigurationError: if it is not below a job's directory.
        :raises StorageError: if the storage fails; part of it may be gone.
        """
        require_deletable(uri)
        with _mapped(uri):
            try:
                self._fs.rm(self._path(uri), recursive=True)
            except FileNotFoundError:
                return

    def _holds(self, uri: str, data: bytes) -> bool:
        try:
            found = self._fs.cat_file(self._path(uri))
        except FileNotFoundError:
            return False
        if found == data:
            return True
        raise StorageError(
            f"Expected no file or equal bytes at {redact(uri)}, found {len(found)} other bytes; two writers share a "
            f"directory.",
            uri=redact(uri),
        )

    def _path(self, uri: str) -> str:
        return str(self._fs._strip_protocol(uri))


@contextmanager
def _mapped(uri: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise CheckpointNotFoundError(f"Expected a file at {redact(uri)}, found none.", uri=redact(uri)) from error
    except OSError as error:
        raise StorageError(f"The storage failed at {redact(uri)}: {error}", uri=redact(uri)) from error


def _relative(path: str, root: str) -> str:
    return path.rstrip("/").removeprefix(root.rstrip("/")).lstrip("/")
