"""
Write strategies of physical files, one for each kind of filesystem.

On a local filesystem, segments are appended to the file in place and synced. On an object store, a file exists only after
it is closed: segments are buffered on this machine and published as one object, which accepts no further segments.
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
    """Content of one physical file; one stream at a time appends, and any thread may call ``make_durable``."""

    @property
    def size(self) -> int:
        """Return the number of appended bytes."""

    @property
    def takes_parts(self) -> bool:
        """Return whether a segment may be appended in several parts."""

    @property
    def is_sealed(self) -> bool:
        """Return whether the file accepts no further segments."""

    @property
    def is_durable(self) -> bool:
        """Return whether all appended bytes are on storage."""

    def append(self, source: IO[bytes]) -> int | None:
        """Append the rest of ``source`` and return its start offset, or ``None`` if the file is sealed."""

    def make_durable(self) -> None:
        """Write all appended bytes to storage and wait for them."""

    def delete(self) -> None:
        """Delete the file; a file that is not on storage is success."""

    def close(self) -> None:
        """Release local resources; bytes that are not durable are lost."""


def new_body(storage: CheckpointStorage, uri: str, buffer_size: int) -> FileBody:
    """
    Return the body of a file that does not exist yet.

    :param buffer_size: Bytes held in memory before they spill to a local temporary file.
    """
    return AppendedBody(storage, uri) if is_local(uri) else CollectedBody(storage, uri, buffer_size)


def is_local(uri: str) -> bool:
    """Return whether a URI names a file on the local filesystem."""
    return scheme_of(uri) in LOCAL_SCHEMES


def local_path(uri: str) -> Path:
    """Return the path of a local file."""
    return Path(uri.partition("://")[2])


class AppendedBody(FileBody):
    """
    A local file to which segments are appended in place.

    The file is opened for each operation, because hundreds of subtasks may each own one.
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
        """Return the number of appended bytes."""
        return self._size

    @property
    def is_durable(self) -> bool:
        """Return whether all appended bytes are on storage."""
        return self._durable_size == self._size

    def append(self, source: IO[bytes]) -> int | None:
        """Append a segment or part of a segment."""
        if self._is_new:
            self._exists = True  # Also after a failed write, which may leave a file behind.
            # Also creates the directories and makes their entries durable.
            self._storage.write_bytes(self._uri, b"")
            self._is_new = False
        start = self._size
        with _as_storage_error(self._uri), local_path(self._uri).open("r+b") as file:
            file.seek(start)
            shutil.copyfileobj(source, file)
            self._size = file.tell()
        return start

    def make_durable(self) -> None:
        """Write all appended bytes to storage."""
        size = self._size
        with _as_storage_error(self._uri), local_path(self._uri).open("r+b") as file:
            os.fsync(file.fileno())
        self._durable_size = max(size, self._durable_size)

    def delete(self) -> None:
        """Delete the file if it may be on storage."""
        if self._exists:
            self._storage.delete_file(self._uri)

    def close(self) -> None:
        """Release local resources."""


class CollectedBody(FileBody):
    """An object whose segments are buffered locally and published once."""

    takes_parts = False

    def __init__(self, storage: CheckpointStorage, uri: str, buffer_size: int) -> None:
        self._storage = storage
        self._uri = uri
        self._spool: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=buffer_size)  # noqa: SIM115
        self._size = 0
        self._is_sealed = False
        self._is_durable = False
        self._may_exist = False
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Return the number of appended bytes."""
        return self._size

    @property
    def is_sealed(self) -> bool:
        """Return whether the object is published or being published."""
        return self._is_sealed

    @property
    def is_durable(self) -> bool:
        """Return whether all appended bytes are on storage."""
        return self._is_durable or self._size == 0

    def append(self, source: IO[bytes]) -> int | None:
        """Append a segment or part of a segment."""
        # Checked without the lock, to avoid waiting for an upload in progress.
        return None if self._is_sealed else self._append_unless_sealed(source)

    def make_durable(self) -> None:
        """Write all appended bytes to storage."""
        self._is_sealed = True
        with self._lock:
            if not self.is_durable:
                self._publish()

    def delete(self) -> None:
        """Delete the file if it may be on storage."""
        self.close()
        if self._may_exist:
            self._storage.delete_file(self._uri)

    def close(self) -> None:
        """Release local resources."""
        self._is_sealed = True
        with self._lock:
            self._spool.close()

    def _publish(self) -> None:
        if self._spool.closed:
            raise StorageError(
                f"Expected buffered bytes of {redact(self._uri)}, found them discarded; write the state again.",
                uri=redact(self._uri),
            )
        self._spool.seek(0)
        data = self._spool.read(self._size)
        self._may_exist = True
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
    """A file written by an earlier attempt."""

    takes_parts = False
    is_sealed = True
    is_durable = True

    def __init__(self, storage: CheckpointStorage, uri: str, size: int) -> None:
        self._storage = storage
        self._uri = uri
        self._size = size

    @property
    def size(self) -> int:
        """Return the number of appended bytes."""
        return self._size

    def append(self, source: IO[bytes]) -> int | None:
        """Append a segment or part of a segment."""
        return None

    def make_durable(self) -> None:
        """Write all appended bytes to storage."""

    def delete(self) -> None:
        """Delete the file if it may be on storage."""
        self._storage.delete_file(self._uri)

    def close(self) -> None:
        """Release local resources."""


@contextlib.contextmanager
def _as_storage_error(uri: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"Expected to write a merged file at {redact(uri)}, found: {error}", uri=redact(uri)
        ) from error
