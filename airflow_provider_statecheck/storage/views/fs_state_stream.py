"""A stream of state that becomes a file, or travels in its handle where it is small."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO

from airflow_provider_statecheck.checkpoint.layout import epoch_name
from airflow_provider_statecheck.checkpoint.states.handles import ByteStreamStateHandle, FileStateHandle
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StateCheckError, StorageError
from airflow_provider_statecheck.storage.failures import is_taken
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import redact

DEFAULT_INLINE_THRESHOLD = 20 * 1024
MAX_INLINE_THRESHOLD = 1024 * 1024
DEFAULT_WRITE_BUFFER = 4096
_NAMES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class StateWriting:
    """
    How a task writes its state.

    :param epoch: Of the attempt that writes; it is in each file's name.
    :param inline_threshold: Up to how many bytes state travels in its handle; 0 for never.
    :param write_buffer_size: How many bytes are kept in memory; at least the threshold are.
    :raises InvalidConfigurationError: for a value out of range.
    """

    epoch: int
    inline_threshold: int = DEFAULT_INLINE_THRESHOLD
    write_buffer_size: int = DEFAULT_WRITE_BUFFER

    def __post_init__(self) -> None:
        if not 0 <= self.inline_threshold <= MAX_INLINE_THRESHOLD:
            raise InvalidConfigurationError(
                f"Expected an inline threshold from 0 to {MAX_INLINE_THRESHOLD} bytes, found {self.inline_threshold}."
            )
        if self.write_buffer_size <= 0:
            raise InvalidConfigurationError(f"Expected a write buffer above 0 bytes, found {self.write_buffer_size}.")

    @property
    def effective_buffer_size(self) -> int:
        """Return the size of a buffer, which has to hold what travels inline."""
        return max(self.write_buffer_size, self.inline_threshold)


class FsCheckpointStateOutputStream:
    """
    Collects bytes on this machine and publishes them as one new file.

    An object store's file exists only when it is whole, so nothing is on storage before ``close_and_get_handle``.

    :param storage: Where the file goes.
    :param directory: The directory of the file.
    :param new_name: Makes a new unique name that carries the epoch.
    :param buffer_size: How many bytes are kept in memory before a temporary file of this machine takes them.
    :param inline_threshold: Up to how many bytes no file is made.
    :raises InvalidConfigurationError: if the buffer is smaller than the threshold.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        directory: str,
        new_name: Callable[[], str],
        *,
        buffer_size: int,
        inline_threshold: int,
    ) -> None:
        if buffer_size < inline_threshold:
            raise InvalidConfigurationError(
                f"Expected a buffer of at least the inline threshold of {inline_threshold} bytes, found {buffer_size}."
            )
        self._storage = storage
        self._directory = directory
        self._new_name = new_name
        self._inline_threshold = inline_threshold
        self._buffer: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=buffer_size)  # noqa: SIM115
        self._position = 0
        self._wants_file = False

    @classmethod
    def open(cls, storage: CheckpointStorage, directory: str, writing: StateWriting) -> FsCheckpointStateOutputStream:
        """Open a stream as a task writes; nothing is created on storage yet."""
        return cls(
            storage,
            directory,
            lambda: epoch_name(writing.epoch),
            buffer_size=writing.effective_buffer_size,
            inline_threshold=writing.inline_threshold,
        )

    def write(self, data: bytes) -> None:
        """
        Add bytes.

        :raises StorageError: if the stream is closed, or this machine has no space, which closes it.
        """
        self._require_open()
        with self._closing_on_failure():
            self._buffer.write(data)
        self._position += len(data)

    def get_pos(self) -> int:
        """Return how many bytes were written, the buffered ones too."""
        return self._position

    def flush_to_file(self) -> None:
        """
        Let what was written go to a file, however small it is; nothing written still makes no file.

        :raises StorageError: if the stream is closed.
        """
        self._require_open()
        self._wants_file = self._wants_file or self._position > 0

    def close_and_get_handle(self) -> ByteStreamStateHandle | FileStateHandle | None:
        """
        Publish the state, or let it travel in its handle; nothing written is no handle and no file.

        :raises StorageError: if the stream is closed, or the storage fails; then no file is left.
        """
        self._require_open()
        with self._closing_on_failure():
            self._buffer.seek(0)
            data = self._buffer.read()
            handle = self._handle_of(data) if data else None
        self.close()
        return handle

    def close(self) -> None:
        """Give up what was written, unless its handle was given out."""
        self._buffer.close()

    def _handle_of(self, data: bytes) -> ByteStreamStateHandle | FileStateHandle:
        if len(data) <= self._inline_threshold and not self._wants_file:
            return ByteStreamStateHandle(uuid.uuid4().hex, data)
        return FileStateHandle(self._publish(data), len(data), hashlib.sha256(data).hexdigest())

    def _publish(self, data: bytes) -> str:
        taken: StorageError | None = None
        for _ in range(_NAMES):
            uri = f"{self._directory}/{self._new_name()}"
            try:
                self._storage.write_bytes(uri, data)
            except StorageError as error:
                if not is_taken(error):
                    self._delete(uri)
                    raise
                taken = error
            else:
                return uri
        raise StorageError(
            f"Expected a name that is free in {redact(self._directory)}, found {_NAMES} random ones taken.",
            uri=redact(self._directory),
        ) from taken

    def _delete(self, uri: str) -> None:
        # Nobody else knows the name, so what is there is the half or whole of this very state.
        with contextlib.suppress(StateCheckError):
            self._storage.delete_file(uri)

    @contextlib.contextmanager
    def _closing_on_failure(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.close()
            raise StorageError(f"State cannot be collected on this machine: {error}") from error
        except BaseException:
            self.close()
            raise

    def _require_open(self) -> None:
        if self._buffer.closed:
            raise StorageError("Expected an open stream of state, found a closed one; open another stream.")
