"""
Output streams of state, completed checkpoints, and the spill of inline state above a budget.

All functions and methods that access the storage raise :class:`StorageError` if it fails.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import IO, Protocol, TypeVar

from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.checkpoint.ids import epoch_name
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    CheckpointedStateScope,
    FileStateHandle,
    OperatorState,
    StreamStateHandle,
    streams_of,
    with_streams,
)
from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    InvalidConfigurationError,
    StateCheckError,
    StorageError,
)
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.storage.failures import is_taken
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument, read_metadata
from airflow_provider_statecheck.storage.uris import redact

_PLACE = re.compile(r"/([0-9a-f]{32}/chk-\d+)$")
"""Job and checkpoint whose directory a URI is."""
DEFAULT_INLINE_THRESHOLD = 20 * 1024
MAX_INLINE_THRESHOLD = 1024 * 1024
DEFAULT_WRITE_BUFFER = 4096
_MAX_NAME_ATTEMPTS = 10
DEFAULT_INLINE_BUDGET = 16 * 1024 * 1024
Created = TypeVar("Created")


class CheckpointStreamFactory(Protocol):
    """Opens state streams; it is thread-safe."""

    def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope) -> CheckpointStateOutputStream:
        """Open a stream without creating a file."""

    def could_reuse_state_handle(self, handle: StreamStateHandle) -> bool:
        """Return whether a later checkpoint may reference a handle again; otherwise its state should be rewritten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStorageLocation(CheckpointStreamFactory):
    """
    Storage location of one checkpoint.

    :param streams: Factory of the state streams.
    :param exclusive: Directory of the checkpoint.
    """

    streams: CheckpointStreamFactory
    exclusive: str

    @override
    def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope) -> CheckpointStateOutputStream:
        return self.streams.create_checkpoint_state_output_stream(scope)

    @override
    def could_reuse_state_handle(self, handle: StreamStateHandle) -> bool:
        return self.streams.could_reuse_state_handle(handle)


@dataclass(frozen=True, slots=True)
class CompletedCheckpointStorageLocation:
    """
    Location of a completed checkpoint.

    :param external_pointer: Pointer that resolves to the checkpoint.
    """

    external_pointer: str
    metadata_handle: FileStateHandle

    def dispose(self) -> None:
        """
        Delete the checkpoint's directory; a missing directory is success.

        :raises StorageError: if a part may still exist.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ResolvedPointer(CompletedCheckpointStorageLocation):
    """
    Completed checkpoint in a directory, which a pointer names.

    :param external_pointer: URI of the directory.
    :param storage: Storage that may read the checkpoint and the files that its metadata names.
    """

    storage: CheckpointStorage = field(compare=False, repr=False)

    def read(self) -> tuple[CheckpointDocument, FileStateHandle]:
        """
        Return the checkpoint's metadata, and the handle of its file with the checksum.

        :raises CheckpointNotFoundError: if the metadata file was deleted in the meantime.
        :raises CorruptStateError: if the file was changed, or replaced by that of another checkpoint.
        :raises IncompatibleCheckpointError: if the file is not metadata of a known version.
        """
        uri = self.metadata_handle.uri
        document, data = read_metadata(self.storage, uri)
        # The names of other directories, such as those of savepoints, do not tell what they contain.
        place = _PLACE.search(self.external_pointer)
        found = f"{document.job_id}/chk-{document.checkpoint_id}"
        if place is not None and place.group(1) != found:
            raise CorruptStateError(
                f"Expected the metadata of {place.group(1)} in {redact(uri)}, found that of {found}; the file was "
                f"replaced by that of another checkpoint.",
                uri=redact(uri),
            )
        return document, FileStateHandle.of(uri, data)

    @override
    def dispose(self) -> None:
        self.storage.delete_directory(self.external_pointer)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateWriting:
    """
    Settings for writing the state of a task.

    :param epoch: Epoch of the writing attempt, which each file name contains.
    :param inline_threshold: Maximum size in bytes of inline state; 0 disables inline state.
    :param write_buffer_size: Memory buffer in bytes; the inline threshold is its minimum.
    :raises InvalidConfigurationError: if a value is out of range.
    """

    epoch: int
    inline_threshold: int = DEFAULT_INLINE_THRESHOLD
    write_buffer_size: int = DEFAULT_WRITE_BUFFER

    def __post_init__(self) -> None:
        bounds = f"from 0 to {MAX_INLINE_THRESHOLD} bytes"
        require("the inline threshold", self.inline_threshold, lambda size: 0 <= size <= MAX_INLINE_THRESHOLD, bounds)
        require("the write buffer", self.write_buffer_size, lambda size: size > 0, "above 0 bytes")

    @property
    def effective_buffer_size(self) -> int:
        """The buffer size in bytes, which is at least the inline threshold."""
        return max(self.write_buffer_size, self.inline_threshold)


Publish = Callable[[bytes], StreamStateHandle]
"""Function that stores the bytes of a closed stream outside its handle."""


class CheckpointStateOutputStream:
    """
    Output stream of one piece of state, for use by a single thread.

    Call ``write`` any number of times, then ``close_and_get_handle``. Calling ``close`` first, or a failed step,
    discards the state. Bytes are buffered on this machine until then: a file on an object store exists only as a whole.

    :param publish: Stores state that is not inline.
    :param buffer_size: Bytes held in memory before they spill to a local temporary file.
    :param inline_threshold: Maximum size in bytes of inline state.
    :raises InvalidConfigurationError: if the buffer is smaller than the threshold.
    """

    def __init__(self, publish: Publish, *, buffer_size: int, inline_threshold: int) -> None:
        if buffer_size < inline_threshold:
            raise InvalidConfigurationError(
                f"Expected a buffer of at least the inline threshold of {inline_threshold} bytes, found {buffer_size}."
            )
        self._publish = publish
        self._inline_threshold = inline_threshold
        self._buffer: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=buffer_size)  # noqa: SIM115
        self._position = 0
        self._wants_file = False

    def write(self, data: bytes) -> None:
        """
        Append bytes.

        :raises StorageError: if the stream is closed, or the storage fails.
        """
        self._require_open()
        with self._closing_on_failure():
            self._buffer.write(data)
        self._position += len(data)

    def get_pos(self) -> int:
        """Return the number of bytes written, including buffered bytes."""
        return self._position

    def flush_to_file(self) -> None:
        """
        Write the state to a file, even if it is below the inline threshold; an empty stream creates no file.

        :raises StorageError: if the stream is closed, or the storage fails.
        """
        self._require_open()
        self._wants_file = self._wants_file or self._position > 0

    def close_and_get_handle(self) -> StreamStateHandle | None:
        """
        Store the state and return its handle, or ``None`` for an empty stream.

        With file merging, the bytes are durable only after ``make_durable`` of the worker view.

        :raises StorageError: if the stream is closed, or the storage fails; no file is left behind.
        """
        self._require_open()
        with self._closing_on_failure():
            self._buffer.seek(0)
            data = self._buffer.read()
            handle = self._handle_of(data) if data else None
        self.close()
        return handle

    def close(self) -> None:
        """Discard the written bytes, unless their handle was returned."""
        self._buffer.close()

    def _handle_of(self, data: bytes) -> StreamStateHandle:
        if len(data) <= self._inline_threshold and not self._wants_file:
            return ByteStreamStateHandle(uuid.uuid4().hex, data)
        return self._publish(data)

    @contextlib.contextmanager
    def _closing_on_failure(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.close()
            raise StorageError(f"Expected to buffer state on the local disk, found: {error}") from error
        except BaseException:
            self.close()
            raise

    def _require_open(self) -> None:
        if self._buffer.closed:
            raise StorageError("Expected an open state stream, found a closed stream; open another stream.")


def open_state_stream(
    storage: CheckpointStorage, directory: str, writing: StateWriting, new_name: Callable[[int], str] = epoch_name
) -> CheckpointStateOutputStream:
    """
    Open a stream that publishes its state as one new file, without creating the file.

    :param new_name: Returns a new unique file name for an epoch.
    """

    def publish(data: bytes) -> FileStateHandle:
        return create_under_free_name(
            lambda: f"{directory}/{new_name(writing.epoch)}", lambda uri: _write_new_file(storage, uri, data)
        )

    return CheckpointStateOutputStream(
        publish, buffer_size=writing.effective_buffer_size, inline_threshold=writing.inline_threshold
    )


def create_under_free_name(new_uri: Callable[[], str], create: Callable[[str], Created]) -> Created:
    """
    Create a file or directory whose name is free, without overwriting any.

    :param new_uri: Returns a URI with a random name.
    :param create: Creates it; raises an error for which ``is_taken`` returns true, if the name is taken.
    :raises StorageError: if the storage fails, or ten random names are taken.
    """
    taken: Exception | None = None
    for _ in range(_MAX_NAME_ATTEMPTS):
        try:
            return create(new_uri())
        except (StorageError, FileExistsError) as error:
            if not is_taken(error):
                raise
            taken = error
    raise StorageError(
        f"Expected a free name, found {_MAX_NAME_ATTEMPTS} random names taken; the last is {redact(str(taken))}"
    ) from taken


def _write_new_file(storage: CheckpointStorage, uri: str, data: bytes) -> FileStateHandle:
    try:
        return write_file(storage, uri, data)
    except StorageError as error:
        if not is_taken(error):
            # The name is unique, therefore a file there can only hold this state or a part of it.
            with contextlib.suppress(StateCheckError):
                storage.delete_file(uri)
        raise


def write_file(storage: CheckpointStorage, uri: str, data: bytes) -> FileStateHandle:
    """
    Publish a file and return its handle.

    :raises StorageError: if the storage fails, or the file exists with other bytes.
    """
    storage.write_bytes(uri, data)
    return FileStateHandle.of(uri, data)


def write_named_by_content(
    storage: CheckpointStorage, directory: str, epoch: int, data: bytes, name: str = ""
) -> FileStateHandle:
    """
    Publish a file whose name contains an epoch and a digest of a name and the data.

    A repeated call writes the same file.
    """
    return write_file(storage, f"{directory}/{epoch}-{hashlib.sha256(name.encode() + data).hexdigest()[:32]}", data)


def spill_above_budget(
    states: Sequence[OperatorState],
    storage: CheckpointStorage,
    *,
    directory: str,
    epoch: int,
    budget: int = DEFAULT_INLINE_BUDGET,
) -> tuple[OperatorState, ...]:
    """
    Move the largest inline states to files until the inline bytes are within the budget.

    The selection and the file names depend only on the handles and the epoch. A repeated call returns equal states.

    :param directory: The exclusive directory of the checkpoint.
    :param epoch: Epoch of the coordinator.
    :param budget: Maximum total size of inline state in bytes, by default 16 MiB.
    :raises InvalidConfigurationError: if the budget is negative.
    :raises StorageError: if the storage fails; files may remain in the directory of the checkpoint.
    """
    require("the inline budget", budget, lambda size: size >= 0, "at least 0 bytes")
    # Handles with equal data get a file each: the elements of a union list count once for each file.
    files = {h: write_named_by_content(storage, directory, epoch, h.data, h.name) for h in _largest(states, budget)}
    if not files:
        return tuple(states)

    def to_file(stream: StreamStateHandle) -> StreamStateHandle:
        return files.get(stream, stream) if isinstance(stream, ByteStreamStateHandle) else stream

    return tuple(with_streams(state, to_file) for state in states)


def _largest(states: Sequence[OperatorState], budget: int) -> list[ByteStreamStateHandle]:
    inline = {s for state in states for s in streams_of(state) if isinstance(s, ByteStreamStateHandle)}
    excess = sum(handle.state_size for handle in inline) - budget
    largest_first = sorted(inline, key=lambda h: (-h.state_size, h.name))
    before = accumulate((handle.state_size for handle in largest_first), initial=0)
    return [handle for handle, moved in zip(largest_first, before, strict=False) if moved < excess]
