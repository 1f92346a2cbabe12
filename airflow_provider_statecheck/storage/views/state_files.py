"""
Contracts of checkpoint storage, and the state files of handles.

State files can be read, deleted and copied, and merged into one file per subtask. A physical file is written once, as a
whole, before the subtask acknowledges. Its parts are segments, with a handle each. The file is deleted when no
checkpoint references any of its segments. Segments that are no longer referenced waste space until then; if they waste
too much, later checkpoints rewrite the state of the other ones.

All functions and methods that access the storage raise :class:`StorageError` if it fails.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol
from urllib.parse import urlsplit

from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.ids import canonical_scheme, epoch_name, new_key
from airflow_provider_statecheck.checkpoint.properties import CheckpointStorageLocationReference
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    CheckpointedStateScope,
    FileStateHandle,
    OperatorState,
    SegmentFileStateHandle,
    StreamStateHandle,
)
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StateCheckError
from airflow_provider_statecheck.storage.bounds import require_decodable
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage, verified
from airflow_provider_statecheck.storage.uris import scheme_of
from airflow_provider_statecheck.storage.views.state_streams import (
    CheckpointStateOutputStream,
    CheckpointStorageLocation,
    CheckpointStreamFactory,
)

_COPYING_SCHEMES = frozenset({"s3", "gs", "memory"})
"""Schemes whose servers copy between all buckets."""


def read_state(storage: CheckpointStorage, handle: StreamStateHandle) -> bytes:
    """
    Return all bytes of a handle and verify their length and digest.

    :raises CheckpointNotFoundError: if the file is missing.
    :raises CorruptStateError: if the length or the digest differs from the handle.
    :raises RequestLimitError: if the file is too large for a server.
    """
    if isinstance(handle, ByteStreamStateHandle):
        return handle.data
    require_decodable(handle.state_size, "a file of state")
    if isinstance(handle, FileStateHandle):
        data = storage.read_sized(handle.uri, handle.size)
    else:
        data = storage.read_range(handle.uri, handle.start, handle.start + handle.length)
    return verified(data, handle.uri, size=handle.state_size, sha256=handle.sha256 or None)


def discard_state(storage: CheckpointStorage, handle: StreamStateHandle) -> None:
    """
    Delete the file of a handle, but not its directory; a missing file is success.

    Inline state has no file. The file of a segment is deleted with its last referenced segment, see ``discarding``.

    :raises StorageError: if the file may still exist.
    """
    if isinstance(handle, FileStateHandle):
        storage.delete_file(handle.uri)


class CheckpointStateToolset:
    """
    Operations on task-owned state: copies of whole files on the same servers.

    Only some filesystems copy on their servers.

    :param directory: Directory of the copies; ``None`` for a storage without files, which copies nothing.
    :param epoch: Epoch of the writing attempt.
    """

    def __init__(self, storage: CheckpointStorage, directory: str | None, epoch: int) -> None:
        self._storage = storage
        self._directory = directory
        self._epoch = epoch

    def can_fast_duplicate(self, handle: StreamStateHandle) -> bool:
        """Return whether the storage server can copy the state of a handle."""
        server = None if self._directory is None else _server(self._directory)
        return server is not None and isinstance(handle, FileStateHandle) and _server(handle.uri) == server

    def duplicate(self, handles: Sequence[StreamStateHandle]) -> list[StreamStateHandle]:
        """
        Copy state on the storage server and return the copies in the same order.

        :raises InvalidConfigurationError: if a handle cannot be copied; nothing is copied.
        :raises StorageError: if the storage fails; all copies are deleted.
        """
        files = [self._require_file(handle) for handle in handles]
        copies = [replace(file, uri=f"{self._directory}/{epoch_name(self._epoch)}") for file in files]
        try:
            for file, copy in zip(files, copies, strict=True):
                self._storage.copy_file(file.uri, copy.uri)
        except BaseException:
            for copy in copies:
                with contextlib.suppress(StateCheckError):
                    self._storage.delete_file(copy.uri)
            raise
        return list(copies)

    def _require_file(self, handle: StreamStateHandle) -> FileStateHandle:
        if isinstance(handle, FileStateHandle) and self.can_fast_duplicate(handle):
            return handle
        raise InvalidConfigurationError(
            f"Expected a state file on the same servers, found {type(handle).__name__}; write the state again, and "
            "check can_fast_duplicate first."
        )


def _server(uri: str) -> tuple[str, str] | None:
    scheme = canonical_scheme(scheme_of(uri))
    if scheme in ("abfs", "az"):
        return "az", urlsplit(uri).netloc
    return (scheme, "") if scheme in _COPYING_SCHEMES else None


@dataclass(eq=False, slots=True)
class PhysicalFile:
    """A file with segments, in memory until it is published."""

    storage: CheckpointStorage
    uri: str
    size: int = 0
    segments: int = 0
    _pieces: list[bytes] = field(default_factory=list)

    def append(self, data: bytes, scope: CheckpointedStateScope) -> SegmentFileStateHandle:
        """Add a segment and return its handle, without the size of the file, which may still grow."""
        start = self.size
        self._pieces.append(data)
        self.size, self.segments = start + len(data), self.segments + 1
        return SegmentFileStateHandle(self.uri, start, len(data), scope, new_key(), hashlib.sha256(data).hexdigest())

    def publish(self) -> None:
        """Write the file to storage; the call may be repeated after a failure."""
        self.storage.write_bytes(self.uri, b"".join(self._pieces))
        self._pieces.clear()

    def final(self, segment: SegmentFileStateHandle) -> SegmentFileStateHandle | FileStateHandle:
        """Return the final handle of a segment: that of the file if it is the only one."""
        if self.segments == 1:
            return FileStateHandle(self.uri, self.size, segment.sha256)
        return replace(segment, file_size=self.size)


class FileMergingSnapshotManager:
    """
    Merges the state files of one subtask; it is thread-safe.

    Close all streams of a checkpoint, then call ``make_durable``, then acknowledge.

    :param epoch: Epoch of the writing attempt. Each file name contains it, for the sweep of orphan files.
    :param config: Settings of the size at which a file is published, and of the maximum number of stored bytes per
        referenced byte; larger state has a file of its own.
    """

    def __init__(self, epoch: int, config: CheckpointConfig) -> None:
        self._epoch = epoch
        self._max_file_size = config.file_merging_max_file_size
        self._max_space_amplification = config.file_merging_max_space_amplification
        self._lock = threading.Lock()
        self._open: dict[str, PhysicalFile] = {}
        self._unpublished: list[PhysicalFile] = []
        self._files: dict[str, PhysicalFile] = {}
        self._retired: frozenset[str] = frozenset()

    def restore_state_handles(self, handles: Iterable[StreamStateHandle]) -> None:
        """
        Register the state from which the subtask was restored, and decide which of it to rewrite.

        :param handles: Handles may repeat.
        """
        self._retired = files_to_retire(handles, self._max_space_amplification)

    def could_reuse_previous_state_handle(self, handle: StreamStateHandle) -> bool:
        """Return whether a later checkpoint may reference a handle again; otherwise its state should be rewritten."""
        return not (isinstance(handle, SegmentFileStateHandle) and handle.uri in self._retired)

    def add_segment(
        self, storage: CheckpointStorage, directory: str, scope: CheckpointedStateScope, data: bytes
    ) -> SegmentFileStateHandle:
        """Add the bytes of a closed stream to the open file of a directory, and publish a file that is full."""
        with self._lock:
            file = self._file_for(storage, directory, len(data))
            segment = file.append(data, scope)
            is_full = file.size >= self._max_file_size
            if is_full and self._open.get(directory) is file:
                del self._open[directory]
        if is_full:
            self._publish(file)
        return segment

    def make_durable(self) -> None:
        """
        Write all segments to storage; call it before acknowledging.

        :raises StorageError: if the storage fails; the checkpoint must not be acknowledged, and the call may be
            repeated.
        """
        with self._lock:
            self._open.clear()
            unpublished = list(self._unpublished)
        for file in unpublished:
            self._publish(file)

    def final(self, handle: StreamStateHandle) -> StreamStateHandle:
        """Return the final handle of state that is durable; handles of other writers are returned unchanged."""
        if not isinstance(handle, SegmentFileStateHandle) or handle.uri not in self._files:
            return handle
        return self._files[handle.uri].final(handle)

    def _file_for(self, storage: CheckpointStorage, directory: str, size: int) -> PhysicalFile:
        found = self._open.get(directory)
        # Large state gains nothing from another segment, which would keep its bytes alive.
        is_large = size >= self._max_file_size
        if found is not None and not is_large:
            return found
        created = PhysicalFile(storage, f"{directory}/{epoch_name(self._epoch)}")
        self._files[created.uri] = created
        self._unpublished.append(created)
        if not is_large:
            self._open[directory] = created
        return created

    def _publish(self, file: PhysicalFile) -> None:
        file.publish()
        with self._lock:
            self._unpublished.remove(file)


def files_to_retire(handles: Iterable[StreamStateHandle], max_amplification: float) -> frozenset[str]:
    """
    Return the URIs of the files whose segments must be rewritten for the space amplification to fall below its limit.

    Files with the largest wasted share come first. Files of unknown size are not counted, nor is exclusive state, which
    each checkpoint rewrites.

    :param handles: All referenced state of a subtask.
    :param max_amplification: Maximum number of stored bytes per referenced byte.
    """
    segments = (h for h in handles if isinstance(h, SegmentFileStateHandle))
    known = {h for h in segments if h.file_size and h.scope is CheckpointedStateScope.SHARED}
    sizes = {handle.uri: handle.file_size for handle in known}
    live = dict.fromkeys(sizes, 0)
    for handle in known:
        live[handle.uri] += handle.length
    stored, limit = sum(sizes.values()), max_amplification * sum(live.values())
    retired = []
    for uri in sorted(sizes, key=lambda uri: live[uri] / sizes[uri]):
        if stored <= limit:
            break
        stored -= sizes[uri] - live[uri]
        retired.append(uri)
    return frozenset(retired)


class Environment(Protocol):
    """Environment of a writing subtask."""

    @property
    def restored_streams(self) -> Iterable[StreamStateHandle]:
        """The state from which the subtask was restored; handles may repeat."""


class CheckpointStorageWorkerView(Protocol):
    """
    What a subtask may do with checkpoint storage. It neither creates nor lists directories, as there are many subtasks.

    For each checkpoint, the subtask opens any number of streams, then calls ``make_durable`` once and acknowledges.
    """

    def resolve_checkpoint_storage_location(
        self, checkpoint_id: int, reference: CheckpointStorageLocationReference
    ) -> CheckpointStreamFactory:
        """
        Return the stream factory of a checkpoint.

        :param checkpoint_id: ID of the checkpoint; ``NO_CHECKPOINT`` for state that the next checkpoint will reference.
        :raises InvalidConfigurationError: if the reference cannot be decoded.
        """

    def create_task_owned_state_stream(self) -> CheckpointStateOutputStream:
        """Open a stream of task-owned state, which outlives the checkpoint and which only the task deletes."""

    def create_task_owned_checkpoint_state_toolset(self) -> CheckpointStateToolset:
        """Return the toolset for task-owned state."""

    def make_durable(self, states: Iterable[OperatorState]) -> tuple[OperatorState, ...]:
        """
        Write all bytes of the closed streams to storage; call it before acknowledging.

        :return: The states with their final handles.
        :raises StorageError: if the storage fails; the checkpoint must not be acknowledged.
        """

    def to_file_merging_storage(
        self, manager: FileMergingSnapshotManager | None, environment: Environment
    ) -> CheckpointStorageWorkerView:
        """
        Return a view that merges files, or this view if merging is disabled or not supported.

        :param manager: The manager of the subtask, or ``None`` if merging is disabled.
        """


class CheckpointStorageCoordinatorView(Protocol):
    """What the driver does with checkpoint storage. All methods raise ``StorageError`` if the storage fails."""

    def initialize_location_for_checkpoint(self, checkpoint_id: int) -> CheckpointStorageLocation:
        """
        Create the location of a checkpoint, to which the driver writes its own state.

        The driver closes each stream and gets its handle before it writes the metadata.

        :raises InvalidConfigurationError: if the id is negative.
        """


class CheckpointStorageAccess(CheckpointStorageCoordinatorView, CheckpointStorageWorkerView, Protocol):
    """Coordinator view and worker view of one checkpoint storage."""
