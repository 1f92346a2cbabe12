"""Streams of state and metadata."""

from __future__ import annotations

import contextlib
import hashlib
import io
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Protocol

from airflow_provider_statecheck.checkpoint.layout import METADATA_FILE, epoch_name
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    CheckpointedStateScope,
    FileStateHandle,
    OperatorState,
    StreamStateHandle,
    streams_of,
    with_streams,
)
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StateCheckError, StorageError
from airflow_provider_statecheck.storage.failures import is_taken
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.pointers import resolve_checkpoint
from airflow_provider_statecheck.storage.uris import redact


class CheckpointStateOutputStream(Protocol):
    """
    Used by one thread: ``write`` any number of times, then ``close_and_get_handle``.

    ``close`` before that, or a step that fails, leaves no state behind.
    """

    def write(self, data: bytes) -> None:
        """
        Add bytes.

        :raises StorageError: if the stream is closed, or the storage fails.
        """
        ...

    def get_pos(self) -> int:
        """Return how many bytes were written, the buffered ones too."""
        ...

    def flush_to_file(self) -> None:
        """
        Let the state go to a file, however small it is.

        :raises StorageError: if the stream is closed, or the storage fails.
        """
        ...

    def close_and_get_handle(self) -> StreamStateHandle | None:
        """
        Make the state durable and return where it is; ``None`` if nothing was written.

        :raises StorageError: if the stream is closed, or the storage fails.
        """
        ...

    def close(self) -> None:
        """Give up what was written, unless its handle was given out."""
        ...


class CheckpointStreamFactory(Protocol):
    """Opens streams of state; several threads may ask at once."""

    def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope) -> CheckpointStateOutputStream:
        """Open a stream; nothing is created on storage yet."""
        ...


class CompletedCheckpointStorageLocation(Protocol):
    """The metadata of a complete checkpoint, and its directory."""

    @property
    def external_pointer(self) -> str:
        """Return by which text the checkpoint is found again."""
        ...

    @property
    def metadata_handle(self) -> StreamStateHandle:
        """Return where the metadata is."""
        ...

    def dispose(self) -> None:
        """
        Delete the checkpoint's directory; a missing one is success.

        :raises StorageError: if part of it may still be there.
        """
        ...


@dataclass(frozen=True, slots=True)
class FsCompletedCheckpointStorageLocation:
    """
    A checkpoint in a directory.

    :param storage: Where it is.
    :param external_pointer: The directory.
    :param metadata_handle: The file in it.
    """

    storage: CheckpointStorage
    external_pointer: str
    metadata_handle: FileStateHandle

    def dispose(self) -> None:
        """
        Delete the directory.

        :raises InvalidConfigurationError: for a directory that is none of a checkpoint or savepoint.
        :raises StorageError: if part of it may still be there.
        """
        self.storage.delete_directory(self.external_pointer)


def resolve_location(storage: CheckpointStorage, pointer: str | None) -> FsCompletedCheckpointStorageLocation:
    """Return the checkpoint of any job to which a pointer leads; raises as :func:`resolve_checkpoint`."""
    found = resolve_checkpoint(storage, pointer)
    handle = FileStateHandle(found.metadata_uri, found.storage.size(found.metadata_uri))
    return FsCompletedCheckpointStorageLocation(found.storage, found.directory_uri, handle)


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


class CheckpointMetadataOutputStream(Protocol):
    """``write`` any number of times, then ``close_and_finalize_checkpoint``; ``close`` before that leaves no metadata."""

    def write(self, data: bytes) -> None:
        """
        Add bytes.

        :raises StorageError: if the stream is closed.
        """
        ...

    def get_pos(self) -> int:
        """Return how many bytes were written."""
        ...

    def flush(self) -> None:
        """
        Do nothing on an open stream: nobody sees metadata before it is whole.

        :raises StorageError: if the stream is closed.
        """
        ...

    def close_and_finalize_checkpoint(self) -> CompletedCheckpointStorageLocation:
        """
        Publish the metadata.

        :raises StorageError: if the stream is closed, or the storage fails.
        """
        ...

    def close(self) -> None:
        """Give up what was written, unless it was published."""
        ...


class BufferedMetadata:
    """Bytes that nobody sees before they are whole."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()

    def write(self, data: bytes) -> None:
        """Add bytes."""
        self._require_open()
        self._buffer.write(data)

    def get_pos(self) -> int:
        """Return how many bytes were written."""
        self._require_open()
        return self._buffer.tell()

    def flush(self) -> None:
        """Refuse a closed stream."""
        self._require_open()

    def close(self) -> None:
        """Forget the bytes."""
        self._buffer.close()

    def content(self) -> bytes:
        """Return what was written."""
        self._require_open()
        return self._buffer.getvalue()

    def _require_open(self) -> None:
        if self._buffer.closed:
            raise StorageError("Expected an open stream of metadata, found a closed one; open another stream.")


class FsCheckpointMetadataOutputStream(BufferedMetadata):
    """
    Metadata as a file.

    :param storage: Where it goes.
    :param directory: The checkpoint's own directory.
    :raises StorageError: if metadata is there already: two checkpoints must never share a directory.
    """

    def __init__(self, storage: CheckpointStorage, directory: str) -> None:
        super().__init__()
        self._storage = storage
        self._directory = directory
        self._uri = f"{directory}/{METADATA_FILE}"
        if storage.exists(self._uri):
            raise StorageError(
                f"Expected no metadata at {redact(self._uri)}, found some; two checkpoints share a directory.",
                uri=redact(self._uri),
            )

    def close_and_finalize_checkpoint(self) -> FsCompletedCheckpointStorageLocation:
        """
        Publish the file; after a failure it may be called again.

        A failure deletes nothing, because what is there by then may be another's.

        :raises StorageError: if the stream is closed, the storage fails, or others wrote metadata meanwhile.
        """
        data = self.content()
        self._storage.write_bytes(self._uri, data)
        self.close()
        handle = FileStateHandle(self._uri, len(data), hashlib.sha256(data).hexdigest())
        return FsCompletedCheckpointStorageLocation(self._storage, self._directory, handle)


DEFAULT_INLINE_BUDGET = 16 * 1024 * 1024
_DIGEST = 32


def spill_above_budget(
    states: Sequence[OperatorState],
    storage: CheckpointStorage,
    *,
    directory: str,
    epoch: int,
    budget: int = DEFAULT_INLINE_BUDGET,
) -> tuple[OperatorState, ...]:
    """
    Return the states with as many of their largest inline handles in files as the budget asks for.

    The choice and the names follow from the bytes, so that repeating it, in another process too, gives equal states.

    :param directory: The checkpoint's own directory.
    :param epoch: Of the coordinator.
    :param budget: How many bytes may travel in handles.
    :raises InvalidConfigurationError: for a budget below 0.
    :raises StorageError: if the storage fails; what was written lies in the directory of the checkpoint.
    """
    if budget < 0:
        raise InvalidConfigurationError(f"Expected an inline budget of at least 0 bytes, found {budget}.")
    files = {h: _write(storage, directory, epoch, h.data) for h in _chosen(states, budget)}

    def move(stream: StreamStateHandle) -> StreamStateHandle:
        return files.get(stream, stream) if isinstance(stream, ByteStreamStateHandle) else stream

    return tuple(with_streams(state, move) for state in states)


def _chosen(states: Sequence[OperatorState], budget: int) -> list[ByteStreamStateHandle]:
    inline = {s for state in states for s in streams_of(state) if isinstance(s, ByteStreamStateHandle)}
    excess = sum(handle.state_size for handle in inline) - budget
    chosen: list[ByteStreamStateHandle] = []
    for handle in sorted(inline, key=lambda h: (-h.state_size, h.name)):
        if excess <= 0:
            break
        chosen.append(handle)
        excess -= handle.state_size
    return chosen


def _write(storage: CheckpointStorage, directory: str, epoch: int, data: bytes) -> FileStateHandle:
    digest = hashlib.sha256(data).hexdigest()
    uri = f"{directory}/{epoch}-{digest[:_DIGEST]}"
    storage.write_bytes(uri, data)
    return FileStateHandle(uri, len(data), digest)
