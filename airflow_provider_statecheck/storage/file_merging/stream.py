"""State output stream that writes one segment of a physical file."""

from __future__ import annotations

import hashlib
import tempfile
from typing import IO, Protocol

from airflow_provider_statecheck.checkpoint.states.handles import SegmentFileStateHandle
from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.storage.file_merging.physical_files import PhysicalFile


class SegmentOwner(Protocol):
    """Owner of physical files, which a stream acquires to write its segment."""

    def acquire(self) -> PhysicalFile:
        """Return a physical file for exclusive use by the stream."""

    def finish(self, file: PhysicalFile, start: int, length: int, sha256: str) -> SegmentFileStateHandle:
        """Release the file and register the complete segment in it."""

    def release(self, file: PhysicalFile) -> None:
        """Release a file to which the stream wrote nothing."""

    def fail(self, file: PhysicalFile) -> None:
        """Release and close a file that may end with a partial segment."""


class FileMergingCheckpointStateOutputStream:
    """
    Stream of one segment, for use by a single thread.

    Call ``write`` any number of times, then ``close_and_get_handle``. Calling ``close`` first, or a failed step, discards
    the segment.
    """

    def __init__(self, owner: SegmentOwner, buffer_size: int) -> None:
        self._owner = owner
        self._buffer_size = buffer_size
        self._buffer: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=buffer_size)  # noqa: SIM115
        self._file: PhysicalFile | None = None
        self._start: int | None = None
        self._position = 0
        self._digest = hashlib.sha256()
        self._is_closed = False

    def write(self, data: bytes) -> None:
        """
        Append bytes.

        :raises StorageError: if the stream is closed, or the storage fails, which closes it.
        """
        self._require_open()
        if not data:
            return
        if self._file is None:
            self._file = self._owner.acquire()
        self._buffer.write(data)
        self._digest.update(data)
        self._position += len(data)
        if self._buffer.tell() >= self._buffer_size:
            self.flush_to_file()

    def get_pos(self) -> int:
        """Return the number of bytes written, including buffered bytes."""
        return self._position

    def flush_to_file(self) -> None:
        """
        Write the buffered bytes to the file, if it accepts a segment in parts.

        :raises StorageError: if the stream is closed, or the storage fails, which closes it.
        """
        self._require_open()
        if self._file is not None and self._file.body.takes_parts:
            self._drain_or_fail()

    def close_and_get_handle(self) -> SegmentFileStateHandle | None:
        """
        Register the segment and return its handle, or ``None`` for an empty stream.

        The bytes are durable only after the manager's ``make_durable``.

        :raises StorageError: if the stream is closed, or the storage fails.
        """
        self._require_open()
        if self._file is not None:
            self._drain_or_fail()
        self._is_closed = True
        self._buffer.close()
        file, self._file = self._file, None
        if file is None or self._start is None:
            return None
        return self._owner.finish(file, self._start, self._position, self._digest.hexdigest())

    def close(self) -> None:
        """Discard the written bytes, unless the segment is registered."""
        self._is_closed = True
        self._buffer.close()
        file, self._file = self._file, None
        if file is not None:
            self._owner.fail(file)

    def _drain_or_fail(self) -> None:
        try:
            self._drain()
        except BaseException:
            self.close()
            raise

    def _drain(self) -> None:
        while self._file is not None:
            self._buffer.seek(0)
            start = self._file.body.append(self._buffer)
            if start is not None:
                self._start = start if self._start is None else self._start
                break
            # Another subtask published the file in the meantime.
            file, self._file = self._file, None
            self._owner.release(file)
            self._file = self._owner.acquire()
        self._buffer.seek(0)
        self._buffer.truncate()

    def _require_open(self) -> None:
        if self._is_closed:
            raise StorageError("Expected an open state stream, found a closed stream; open another stream.")
