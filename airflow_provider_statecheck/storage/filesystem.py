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

from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CorruptStateError,
    StateCheckError,
    StorageError,
)
from airflow_provider_statecheck.storage import local_files
from airflow_provider_statecheck.storage.schemes import open_filesystem, serves
from airflow_provider_statecheck.storage.uris import LOCAL_SCHEMES, normalise_base, redact, require_deletable, scheme_of


class CheckpointStorage:
    """
    Bytes by absolute URI.

    Writing the same bytes twice and deleting what is gone are both success, so that every step may be repeated. URIs may
    lie outside the checkpoint directory, and on another filesystem: rows outlive a change of that setting.

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
        return _is_local(self.base_uri)

    def write_bytes(self, uri: str, data: bytes, *, overwrite: bool = False) -> None:
        """
        Publish a file.

        :param overwrite: Whether other bytes under this name may be replaced.
        :raises StorageError: if other bytes are there already, or the storage fails.
        """
        with _mapped(uri):
            if not overwrite and self._holds(uri, data):
                return
            try:
                self._publish(uri, data, overwrite=overwrite)
            except FileExistsError:
                # Somebody was faster. Equal bytes mean that it was this very step, done twice.
                if not self._holds(uri, data):
                    raise
            except FileNotFoundError as error:
                raise StorageError(f"Nothing can be written at {redact(uri)}: {redact(str(error))}") from error

    def read_bytes(self, uri: str) -> bytes:
        """
        Return a whole file.

        :raises CheckpointNotFoundError: if it is missing.
        :raises StorageError: if the storage fails.
        """
        with _mapped(uri):
            filesystem, path = self._locate(uri)
            return bytes(filesystem.cat_file(path))

    def read_range(self, uri: str, start: int, end: int) -> bytes:
        """
        Return the bytes from ``start`` to before ``end``.

        :raises CheckpointNotFoundError: if the file is missing.
        :raises StorageError: if the storage fails.
        """
        with _mapped(uri):
            filesystem, path = self._locate(uri)
            return bytes(filesystem.cat_file(path, start=start, end=end))

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
        """
        Tell whether a file or directory is there.

        :raises StorageError: if the storage does not answer; that is not the same as no.
        """
        return self._info(uri) is not None

    def is_directory(self, uri: str) -> bool:
        """
        Tell whether a directory is there.

        :raises StorageError: if the storage does not answer.
        """
        info = self._info(uri)
        return info is not None and info["type"] == "directory"

    def size(self, uri: str) -> int:
        """
        Return how many bytes a file has.

        :raises CheckpointNotFoundError: if it is missing, or a directory.
        :raises StorageError: if the storage fails.
        """
        info = self._info(uri)
        if info is None or info["type"] == "directory":
            raise _not_found(uri)
        return int(info["size"])

    def list_files(self, directory: str) -> dict[str, int]:
        """
        Return the size in bytes of each file below a directory by its relative path; nothing if it is missing.

        :raises StorageError: if the storage fails; an incomplete list is never returned.
        """
        with _mapped(directory):
            filesystem, root = self._locate(directory)
            if _is_local(directory):
                return local_files.list_files(Path(root))
            try:
                found = filesystem.find(root, detail=True)
            except FileNotFoundError:
                return {}
            return {_relative(path, root): int(info["size"]) for path, info in found.items() if path != root}

    def list_directories(self, directory: str) -> list[str]:
        """Return the names of the directories in a directory; nothing if it is missing."""
        with _mapped(directory):
            filesystem, root = self._locate(directory)
            try:
                entries = filesystem.ls(root, detail=True)
            except FileNotFoundError:
                return []
            # Object stores may list the marker of the directory itself.
            found = (_relative(str(e["name"]), root) for e in entries if e["type"] == "directory")
            return sorted(name for name in found if name)

    def delete_file(self, uri: str) -> None:
        """
        Delete a file; a missing one is success.

        :raises InvalidConfigurationError: if it is not in a checkpoint or a snapshot.
        :raises StorageError: if the storage fails.
        """
        require_deletable(uri, self.base_uri)
        with _mapped(uri):
            filesystem, path = self._locate(uri)
            try:
                filesystem.rm_file(path)
            except FileNotFoundError:
                return

    def delete_directory(self, uri: str) -> None:
        """
        Delete a directory with all that is in it; a missing one is success.

        :raises InvalidConfigurationError: if it is not a checkpoint or a snapshot, or in one.
        :raises StorageError: if the storage fails; part of it may be gone.
        """
        require_deletable(uri, self.base_uri)
        with _mapped(uri):
            filesystem, path = self._locate(uri)
            try:
                filesystem.rm(path, recursive=True)
            except FileNotFoundError:
                return

    def _publish(self, uri: str, data: bytes, *, overwrite: bool) -> None:
        filesystem, path = self._locate(uri)
        if _is_local(uri):
            local_files.publish(Path(path), data, overwrite=overwrite)
        else:
            filesystem.pipe_file(path, data)

    def _holds(self, uri: str, data: bytes) -> bool:
        filesystem, path = self._locate(uri)
        try:
            found = filesystem.cat_file(path)
        except FileNotFoundError:
            return False
        if found == data:
            return True
        raise StorageError(
            f"Expected no file or equal bytes at {redact(uri)}, found {len(found)} other bytes; two writers share a "
            f"directory.",
            uri=redact(uri),
        )

    def _info(self, uri: str) -> dict[str, Any] | None:
        # Not fsspec's exists(): that answers False whatever goes wrong.
        with _mapped(uri):
            filesystem, path = self._locate(uri)
            try:
                return dict(filesystem.info(path))
            except (FileNotFoundError, NotADirectoryError):
                return None

    def _locate(self, uri: str) -> tuple[Any, str]:
        filesystem = self._fs if serves(self._fs, self.base_uri, uri) else open_filesystem(uri, {})
        return filesystem, str(filesystem._strip_protocol(uri))


@contextmanager
def _mapped(uri: str) -> Iterator[None]:
    try:
        yield
    except StateCheckError:
        raise
    except FileNotFoundError as error:
        raise _not_found(uri) from error
    except Exception as error:
        # Everything: the clients of some object stores raise errors that are no OSError.
        raise StorageError(f"The storage failed at {redact(uri)}: {redact(str(error))}", uri=redact(uri)) from error


def _not_found(uri: str) -> CheckpointNotFoundError:
    return CheckpointNotFoundError(f"Expected a file at {redact(uri)}, found none.", uri=redact(uri))


def _is_local(uri: str) -> bool:
    return scheme_of(uri) in LOCAL_SCHEMES


def _relative(path: str, root: str) -> str:
    return path.rstrip("/").removeprefix(root.rstrip("/")).lstrip("/")
