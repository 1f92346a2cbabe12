"""
File merging: a subtask writes the state of a checkpoint to one physical file per directory.

A physical file is written once, as a whole, before the subtask acknowledges. Its parts are segments, with a handle each.
The file is deleted when no checkpoint references any of its segments. Segments that are no longer referenced waste space
until then; if they waste too much, later checkpoints rewrite the state of the other ones.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Self

from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.layout import epoch_name
from airflow_provider_statecheck.checkpoint.states.handles import (
    CheckpointedStateScope,
    FileStateHandle,
    SegmentFileStateHandle,
    StreamStateHandle,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMergingOptions:
    """Options of file merging; the defaults are those of :class:`CheckpointConfig`."""

    is_enabled: bool = CheckpointConfig.file_merging_enabled.default
    max_file_size: int = CheckpointConfig.file_merging_max_file_size.default
    """Size in bytes at which a file is published; larger state has a file of its own."""
    max_space_amplification: float = CheckpointConfig.file_merging_max_space_amplification.default
    """Maximum number of stored bytes per referenced byte; infinity disables the limit."""

    @classmethod
    def of(cls, config: CheckpointConfig) -> Self:
        """Return the options of a configuration."""
        return cls(
            is_enabled=config.file_merging_enabled,
            max_file_size=config.file_merging_max_file_size,
            max_space_amplification=config.file_merging_max_space_amplification,
        )


@dataclass(eq=False, slots=True)
class PhysicalFile:
    """
    A file with segments, in memory until it is published.

    :param storage: Storage of the file.
    :param uri: Unique URI of the file.
    """

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
        """
        Write the file to storage; the call may be repeated after a failure.

        :raises StorageError: if the storage fails.
        """
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
    :param options: Options of file merging; the defaults if omitted.
    """

    def __init__(self, epoch: int, options: FileMergingOptions | None = None) -> None:
        self._epoch = epoch
        self._options = options or FileMergingOptions()
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
        self._retired = files_to_retire(handles, self._options.max_space_amplification)

    def could_reuse_previous_state_handle(self, handle: StreamStateHandle) -> bool:
        """Return whether a later checkpoint may reference a handle again; otherwise its state should be rewritten."""
        return not (isinstance(handle, SegmentFileStateHandle) and handle.uri in self._retired)

    def add_segment(
        self, storage: CheckpointStorage, directory: str, scope: CheckpointedStateScope, data: bytes
    ) -> SegmentFileStateHandle:
        """
        Add the bytes of a closed stream to the open file of a directory, and publish a file that is full.

        :raises StorageError: if the storage fails.
        """
        with self._lock:
            file = self._file_for(storage, directory, len(data))
            segment = file.append(data, scope)
            is_full = file.size >= self._options.max_file_size
            if is_full and self._open.get(directory) is file:
                del self._open[directory]
        if is_full:
            self._publish(file)
        return segment

    def make_durable(self) -> None:
        """
        Write all segments to storage; call it before acknowledging.

        :raises StorageError: if the storage fails; the checkpoint must not be acknowledged, and the call may be repeated.
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
        is_large = size >= self._options.max_file_size
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

    Files with the largest wasted share come first. Files of unknown size are not counted, nor is exclusive state, which each
    checkpoint rewrites.

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
