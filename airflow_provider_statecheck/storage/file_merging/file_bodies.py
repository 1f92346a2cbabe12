"""
Bodies of physical files, by the abilities of the filesystem.

A local file may be written to after others have been told of it, so segments are appended in place and synced. On any other
filesystem a file exists when it is closed: its segments are collected on this machine and published as one object, and
after that it takes no more.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Protocol

from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import LOCAL_SCHEMES, redact, scheme_of


class FileBody(Protocol):
    """Bytes of one physical file; one stream at a time appends, anybody may make them durable."""

    @property
    def size(self) -> int:
        """Return how many bytes there are."""

    @property
    def takes_parts(self) -> bool:
        """Tell whether a segment may arrive in several parts."""

    @property
    def is_sealed(self) -> bool:
        """Tell whether it takes no more."""

    @property
    def is_durable(self) -> bool:
        """Tell whether all bytes would survive this machine's process."""

    def append(self, source: IO[bytes]) -> int | None:
        """Add what is in ``source`` from its position on; return where it begins, ``None`` if this takes no more."""

    def make_durable(self) -> None:
        """Return when all bytes so far are on storage."""

    def delete(self) -> None:
        """Delete the file; one that never came to storage is success."""

    def close(self) -> None:
        """Give up what this machine holds; what is not durable by now never will be."""


def new_body(storage: CheckpointStorage, uri: str, buffer_size: int) -> FileBody:
    """
    Return the body of a file that does not exist yet.

    :param buffer_size: How many bytes are kept in memory before they go to a temporary file of this machine.
    """
    return AppendedBody(storage, uri) if is_local(uri) else CollectedBody(storage, uri, buffer_size)


def is_local(uri: str) -> bool:
    """Tell whether a URI is that of a file of this machine."""
    return scheme_of(uri) in LOCAL_SCHEMES


def local_path(uri: str) -> Path:
    """Return the path of a local file."""
    return Path(uri.partition("://")[2])


class AppendedBody(FileBody):
    """
    A local file that grows.

    It is open only while something is done with it: hundreds of subtasks may have one each.
    """

    takes_parts = True
    is_sealed = False

    def __init__(self, storage: CheckpointStorage, uri: str) -> None:
        self._storage = storage
        self._uri = uri
        self._size = 0
        self._durable_size = 0
        self._is_new = True
        self._exists = False

    @property
    def size(self) -> int:
        """Return how many bytes there are."""
        return self._size

    @property
    def is_durable(self) -> bool:
        """Tell whether all bytes are on storage."""
        return self._durable_size == self._size

    def append(self, source: IO[bytes]) -> int | None:
        """Add a segment, or a part of one."""
        if self._is_new:
            self._exists = True  # whatever becomes of the call
            # Also makes the directories, and their entries durable.
            self._storage.write_bytes(self._uri, b"")
            self._is_new = False
        start = self._size
        with _as_storage_error(self._uri), local_path(self._uri).open("r+b") as file:
            file.seek(start)
            shutil.copyfileobj(source, file)
            self._size = file.tell()
        return start

    def make_durable(self) -> None:
        """Bring all bytes so far to storage."""
        size = self._size
        with _as_storage_error(self._uri), local_path(self._uri).open("r+b") as file:
            os.fsync(file.fileno())
        self._durable_size = max(size, self._durable_size)

    def delete(self) -> None:
        """Delete what came to storage."""
        if self._exists:
            self._storage.delete_file(self._uri)

    def close(self) -> None:
        """Give up what is not on storage."""


class CollectedBody(FileBody):
    """An object that is published once, whole."""

    takes_parts = False

    def __init__(self, storage: CheckpointStorage, uri: str, buffer_size: int) -> None:
        self._storage = storage
        self._uri = uri
        self._spool: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=buffer_size)  # noqa: SIM115
        self._size = 0
        self._is_sealed = False
        self._is_durable = False
        self._was_tried = False
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Return how many bytes there are."""
        return self._size

    @property
    def is_sealed(self) -> bool:
        """Tell whether it was published, or is about to be."""
        return self._is_sealed

    @property
    def is_durable(self) -> bool:
        """Tell whether all bytes are on storage."""
        return self._is_durable or self._size == 0

    def append(self, source: IO[bytes]) -> int | None:
        """Add a segment, or a part of one."""
        # Nobody waits for a file that is being published.
        return None if self._is_sealed else self._append_unless_sealed(source)

    def make_durable(self) -> None:
        """Bring all bytes so far to storage."""
        self._is_sealed = True
        with self._lock:
            if not self.is_durable:
                self._publish()

    def delete(self) -> None:
        """Delete what came to storage."""
        self.close()
        if self._was_tried:
            self._storage.delete_file(self._uri)

    def close(self) -> None:
        """Give up what is not on storage."""
        self._is_sealed = True
        with self._lock:
            self._spool.close()

    def _publish(self) -> None:
        if self._spool.closed:
            raise StorageError(
                f"Expected the bytes of {redact(self._uri)}, found them given up.", uri=redact(self._uri)
            )
        self._spool.seek(0)
        data = self._spool.read(self._size)
        self._was_tried = True
        self._storage.write_bytes(self._uri, data)
        self._is_durable = True
        self._spool.close()

    def _append_unless_sealed(self, source: IO[bytes]) -> int | None:
        with self._lock:
            return None if self._is_sealed else self._collect(source)

    def _collect(self, source: IO[bytes]) -> int:
        start = self._size
        with _as_storage_error(self._uri):
            shutil.copyfileobj(source, self._spool)
            self._size = self._spool.tell()
        return start


class StoredBody(FileBody):
    """A file that an earlier attempt wrote."""

    takes_parts = False
    is_sealed = True
    is_durable = True

    def __init__(self, storage: CheckpointStorage, uri: str, size: int) -> None:
        self._storage = storage
        self._uri = uri
        self._size = size

    @property
    def size(self) -> int:
        """Return how many bytes there are."""
        return self._size

    def append(self, source: IO[bytes]) -> int | None:
        """Add a segment, or a part of one."""
        return None

    def make_durable(self) -> None:
        """Bring all bytes so far to storage."""

    def delete(self) -> None:
        """Delete what came to storage."""
        self._storage.delete_file(self._uri)

    def close(self) -> None:
        """Give up what is not on storage."""


@contextlib.contextmanager
def _as_storage_error(uri: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"A merged file cannot be written at {redact(uri)}: {error}", uri=redact(uri)) from error
