"""File merging manager: assigns state streams to physical files and deletes unused files."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.layout import epoch_name, epoch_of
from airflow_provider_statecheck.checkpoint.states.handles import (
    CheckpointedStateScope,
    SegmentFileStateHandle,
    StreamStateHandle,
)
from airflow_provider_statecheck.exceptions import CoordinatorError, InvalidConfigurationError, StateCheckError
from airflow_provider_statecheck.storage.file_merging.file_bodies import StoredBody, new_body
from airflow_provider_statecheck.storage.file_merging.physical_files import (
    BlockingPool,
    LogicalFile,
    ManagedDirectory,
    NonBlockingPool,
    PhysicalFile,
    PoolKey,
    SegmentRegistry,
    SpaceStatistics,
    SubtaskKey,
    files_to_retire,
)
from airflow_provider_statecheck.storage.file_merging.stream import FileMergingCheckpointStateOutputStream
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import redact

log = logging.getLogger(__name__)

MIB = 1024 * 1024


class FileMergingType(StrEnum):
    """Lifetime of a physical file that accepts segments."""

    WITHIN_CHECKPOINT = "within_checkpoint"
    """A file holds segments of one checkpoint."""
    ACROSS_CHECKPOINTS = "across_checkpoints"
    """A file holds segments of any number of checkpoints, until it is full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMergingOptions:
    """Options of file merging, with the defaults of Flink."""

    merging_type: FileMergingType = FileMergingType.WITHIN_CHECKPOINT
    max_file_size: int = 32 * MIB
    """Size in bytes at which a file accepts no further segments."""
    max_space_amplification: float = 2.0
    """Maximum physical bytes per logical byte; infinity disables the limit."""
    max_subtasks_per_file: int = 4
    """Number of subtasks that share a file of a blocking pool."""
    is_pool_blocking: bool = False
    """Whether a stream waits for a free file instead of creating one."""

    def __post_init__(self) -> None:
        _require(self.max_file_size > 0, "max_file_size above 0", self.max_file_size)
        amplification = self.max_space_amplification
        _require(amplification > 1 and not math.isnan(amplification), "max_space_amplification above 1", amplification)
        _require(self.max_subtasks_per_file >= 1, "max_subtasks_per_file of at least 1", self.max_subtasks_per_file)


def _require(is_met: bool, expected: str, found: float) -> None:
    if not is_met:
        raise InvalidConfigurationError(f"Expected {expected}, found {found}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class MergingDirectories:
    """Directories and buffer size of a manager."""

    base: str
    shared: str
    taskowned: str
    write_buffer_size: int

    def __post_init__(self) -> None:
        for uri in (self.shared, self.taskowned):
            if not uri.startswith(f"{self.base}/"):
                raise InvalidConfigurationError(f"Expected a directory below {redact(self.base)}, found {redact(uri)}.")
        if self.write_buffer_size <= 0:
            raise InvalidConfigurationError(f"Expected a write buffer above 0 bytes, found {self.write_buffer_size}.")


class FileMergingSnapshotManager:
    """
    Merges the state files of one executor process; it is thread-safe.

    Call ``init_file_system`` once and ``register_subtask`` for each subtask before opening streams. Each subtask calls
    ``make_durable`` between its last stream of a checkpoint and the acknowledgement: before that, bytes may exist on this
    machine only. The subtask forwards checkpoint notifications, which may be lost or repeated.

    The manager deletes only closed, unreferenced files in its own directories.

    :param manager_id: Name of the process's directory below ``taskowned``.
    :param epoch: Epoch of the writing attempt. Each file name contains it, for the sweep of orphan files.
    :param options: Options of file merging; the defaults if omitted.
    """

    def __init__(self, manager_id: str, epoch: int, options: FileMergingOptions | None = None) -> None:
        self._id = manager_id
        self._epoch = epoch
        self._options = options or FileMergingOptions()
        self._changed = threading.Condition()
        self._registry = SegmentRegistry()
        self._pools: dict[PoolKey, NonBlockingPool] = {}
        self._pool_by_file: dict[PhysicalFile, NonBlockingPool] = {}
        self._shared: dict[SubtaskKey, ManagedDirectory] = {}
        self._registered: set[SubtaskKey] = set()
        self._released: dict[int, set[SubtaskKey]] = {}
        self._undeleted: list[PhysicalFile] = []
        self._storage: CheckpointStorage | None = None
        self._directories: MergingDirectories | None = None
        self._exclusive = ManagedDirectory("")
        self._is_closed = False

    def init_file_system(
        self, storage: CheckpointStorage, *, base: str, shared: str, taskowned: str, write_buffer_size: int
    ) -> None:
        """
        Set the directories; each is created with its first file.

        :param write_buffer_size: Memory buffer of a stream or file, in bytes.
        :raises InvalidConfigurationError: if the values differ from an earlier call, or a directory is not below ``base``.
        """
        directories = MergingDirectories(
            base=base, shared=shared, taskowned=taskowned, write_buffer_size=write_buffer_size
        )
        with self._changed:
            if self._directories not in (None, directories):
                raise InvalidConfigurationError(
                    f"Expected the directories of the first call, found {redact(base)}; use another manager."
                )
            if self._directories is None:
                self._storage, self._directories = storage, directories
                self._exclusive = ManagedDirectory(f"{taskowned}/{self._id}")

    def register_subtask(self, subtask: SubtaskKey) -> None:
        """
        Register a subtask for writing; a repeated call has no effect.

        :raises CoordinatorError: before ``init_file_system`` or after ``close``.
        """
        with self._changed:
            directories, _ = self._require_ready()
            self._registered.add(subtask)
            self._shared.setdefault(subtask, ManagedDirectory(f"{directories.shared}/{subtask.managed_directory}"))
            self._changed.notify_all()

    def unregister_subtask(self, subtask: SubtaskKey) -> None:
        """Unregister a subtask; a subsumption notified by another subtask discards its segments."""
        with self._changed:
            self._registered.discard(subtask)
            self._release(list(self._released), None)
        self._delete_unused()

    def managed_directory(self, subtask: SubtaskKey, scope: CheckpointedStateScope) -> str:
        """
        Return the directory of a subtask's files.

        :raises CoordinatorError: if the subtask is not registered.
        """
        with self._changed:
            return self._directory(subtask, scope).uri

    def create_checkpoint_state_output_stream(
        self, subtask: SubtaskKey, checkpoint_id: int, scope: CheckpointedStateScope
    ) -> FileMergingCheckpointStateOutputStream:
        """
        Open a stream, which acquires a file with its first byte.

        :raises CoordinatorError: if the subtask is not registered, or the manager is closed.
        """
        with self._changed:
            directories, _ = self._require_ready()
            self._directory(subtask, scope)
        owner = _StreamOwner(self, subtask, checkpoint_id, scope)
        return FileMergingCheckpointStateOutputStream(owner, directories.write_buffer_size)

    def make_durable(self, subtask: SubtaskKey, checkpoint_id: int) -> None:
        """
        Write all bytes of a subtask's checkpoint to storage; call it before acknowledging.

        :raises StorageError: if the storage fails; the checkpoint must not be acknowledged, and the call may be repeated.
        """
        for file in self._not_durable(subtask, checkpoint_id):
            self._make_file_durable(file)
        self._delete_unused()

    def could_reuse_previous_state_handle(self, handle: StreamStateHandle) -> bool:
        """Return whether a later checkpoint may reference a handle again; otherwise rewrite its state."""
        with self._changed:
            segment = self._registry.find(handle.logical_id) if isinstance(handle, SegmentFileStateHandle) else None
            return segment is not None and segment.physical.is_reusable

    def reuse_previous_state_handles(self, checkpoint_id: int, handles: Iterable[StreamStateHandle]) -> None:
        """
        Record that a checkpoint references handles of earlier checkpoints; handles of other types are ignored.

        :raises CoordinatorError: if a segment is unknown, as its file may be deleted; no reference is recorded.
        """
        with self._changed:
            for segment in self._find_all([h for h in handles if isinstance(h, SegmentFileStateHandle)]):
                segment.use_in(checkpoint_id)
                self._refer(segment, checkpoint_id)

    def restore_state_handles(
        self, checkpoint_id: int, subtask: SubtaskKey, handles: Iterable[StreamStateHandle]
    ) -> None:
        """
        Register the segments of the checkpoint from which a subtask was restored.

        The manager becomes the owner of files in its directories; all other files are read-only.

        :raises CheckpointNotFoundError: if an owned file is missing; no segment is registered.
        :raises CoordinatorError: if the subtask is not registered.
        """
        segments = [handle for handle in handles if isinstance(handle, SegmentFileStateHandle)]
        handle_by_uri = {handle.uri: handle for handle in segments}
        files = {uri: self._restored_file(handle, subtask) for uri, handle in handle_by_uri.items()}
        with self._changed:
            for handle in segments:
                self._restore(handle, self._registry.files.get(handle.uri, files[handle.uri]), subtask, checkpoint_id)

    def notify_checkpoint_complete(self, subtask: SubtaskKey, checkpoint_id: int) -> None:
        """
        Verify that the files of a completed checkpoint are durable; nothing is deleted.

        :raises StorageError: if files are not durable and writing them fails.
        """
        if not self._is_closed and self._not_durable(subtask, checkpoint_id):
            log.error(
                "Checkpoint %s was completed before its merged files were durable; writing them now", checkpoint_id
            )
            self.make_durable(subtask, checkpoint_id)

    def notify_checkpoint_aborted(self, subtask: SubtaskKey, checkpoint_id: int) -> None:
        """Discard the segments that a subtask wrote for an aborted checkpoint."""
        with self._changed:
            if self._is_closed:
                return
            self._registry.discard_of(subtask, checkpoint_id)
            if subtask in self._shared:
                self._shared[subtask].forget(checkpoint_id)
            self._release([checkpoint_id], subtask)
            self._limit_space()
        self._delete_unused()

    def notify_checkpoint_subsumed(self, subtask: SubtaskKey, checkpoint_id: int) -> None:
        """Discard a subtask's segments up to this checkpoint that no newer checkpoint references."""
        with self._changed:
            if self._is_closed:
                return
            # Unregistered subtasks receive no notifications and reference no segments.
            subtasks = {subtask} | (self._registry.uploaders() - self._registered)
            self._registry.discard_up_to(subtasks, checkpoint_id)
            for known in subtasks & self._shared.keys():
                self._shared[known].subsume(checkpoint_id)
            self._release([i for i in self._released if i <= checkpoint_id], subtask)
            self._limit_space()
        self._delete_unused()

    @property
    def statistics(self) -> SpaceStatistics:
        """Return the current space statistics."""
        with self._changed:
            return SpaceStatistics.of(self._registry.files.values())

    def close(self) -> None:
        """
        Close the manager and remove empty directories that no checkpoint references.

        Files that a checkpoint may reference are retained. Bytes that are not durable are discarded, because no
        acknowledged checkpoint references them.
        """
        with self._changed:
            self._is_closed = True
            for pool in self._pools.values():
                pool.close()
            for file in self._registry.files.values():
                self._registry.close(file)
            self._changed.notify_all()
        self._delete_unused()
        for file in list(self._registry.files.values()):
            file.body.close()
        for directory in (*self._shared.values(), self._exclusive):
            if directory.uri:
                directory.remove_if_unused()

    def _acquire(self, subtask: SubtaskKey, checkpoint_id: int, scope: CheckpointedStateScope) -> PhysicalFile:
        with self._changed:
            self._require_ready()
            directory = self._directory(subtask, scope)
            pool = self._pool(subtask, checkpoint_id, scope)
            file = pool.acquire()
            self._pool_by_file[file] = pool
            self._registry.files[file.uri] = file
            directory.refer(checkpoint_id)
            self._released.setdefault(checkpoint_id, set())
            return file

    def _finish(self, segment: LogicalFile) -> SegmentFileStateHandle:
        file = segment.physical
        with self._changed:
            if not self._is_closed:
                self._registry.add(segment)
            self._return_to_pool(file)
        if self._is_closed:
            self._delete_unused()
            self._require_ready()
        if file.is_closed and not file.body.takes_parts:
            self._publish_early(file)
        self._delete_unused()
        return segment.handle

    def _return(self, file: PhysicalFile, *, is_broken: bool) -> None:
        with self._changed:
            file.is_closed = file.is_closed or is_broken
            self._return_to_pool(file)
        self._delete_unused()

    def _return_to_pool(self, file: PhysicalFile) -> None:
        # The pool that created the file: if its checkpoint has ended, another pool may have the same key.
        self._pool_by_file.pop(file).release(file, self._options.max_file_size)
        if file.is_closed or self._is_closed:
            self._registry.close(file)
        self._changed.notify_all()

    def _pool(self, subtask: SubtaskKey, checkpoint_id: int, scope: CheckpointedStateScope) -> NonBlockingPool:
        is_within = self._options.merging_type is FileMergingType.WITHIN_CHECKPOINT
        is_shared = scope is CheckpointedStateScope.SHARED
        key = PoolKey(
            checkpoint_id=checkpoint_id if is_within else None, subtask=subtask if is_shared else None, scope=scope
        )
        if key not in self._pools:
            self._pools[key] = self._new_pool(self._directory(subtask, scope).uri, scope)
        return self._pools[key]

    def _new_pool(self, directory: str, scope: CheckpointedStateScope) -> NonBlockingPool:
        def create() -> PhysicalFile:
            directories, storage = self._require_ready()
            uri = f"{directory}/{epoch_name(self._epoch)}"
            return PhysicalFile(uri=uri, scope=scope, body=new_body(storage, uri, directories.write_buffer_size))

        def capacity() -> int:
            writers = len(self._registered) if scope is CheckpointedStateScope.EXCLUSIVE else 1
            return max(1, math.ceil(writers / self._options.max_subtasks_per_file))

        return (
            BlockingPool(create, self._changed, capacity) if self._options.is_pool_blocking else NonBlockingPool(create)
        )

    def _release(self, checkpoint_ids: Sequence[int], subtask: SubtaskKey | None) -> None:
        for checkpoint_id in checkpoint_ids:
            released = self._released.get(checkpoint_id)
            if released is None:
                continue
            released |= {subtask} if subtask else set()
            is_released_by_all = bool(self._registered) and self._registered <= released
            if is_released_by_all or (subtask and not self._registry.has_uploads(checkpoint_id)):
                self._end_checkpoint(checkpoint_id)

    def _end_checkpoint(self, checkpoint_id: int) -> None:
        del self._released[checkpoint_id]
        self._exclusive.forget(checkpoint_id)
        for key in [key for key in self._pools if key.checkpoint_id == checkpoint_id]:
            for file in self._pools.pop(key).close():
                self._registry.close(file)
        self._changed.notify_all()

    def _limit_space(self) -> None:
        owned = [file for file in self._registry.files.values() if file.is_owned]
        for file in files_to_retire(owned, self._options.max_space_amplification):
            file.is_reusable = False
            self._registry.close(file)

    def _not_durable(self, subtask: SubtaskKey, checkpoint_id: int) -> list[PhysicalFile]:
        with self._changed:
            pending = [file for file in self._registry.files.values() if not file.body.is_durable]
            return [
                file
                for file in pending
                if any(s.subtask == subtask and s.is_referenced_by(checkpoint_id) for s in file.segments)
            ]

    def _make_file_durable(self, file: PhysicalFile) -> None:
        try:
            file.body.make_durable()
        finally:
            if file.body.is_sealed:
                with self._changed:
                    self._registry.close(file)

    def _publish_early(self, file: PhysicalFile) -> None:
        try:
            file.body.make_durable()
        except StateCheckError as error:
            # make_durable retries before the acknowledgement and raises the error then.
            log.warning("A full merged file could not be written to storage and is retried: %s", error)

    def _restored_file(self, handle: SegmentFileStateHandle, subtask: SubtaskKey) -> PhysicalFile:
        with self._changed:
            _, storage = self._require_ready()
            directory, _, name = handle.uri.rpartition("/")
            is_owned = self._directory(subtask, handle.scope).uri == directory and epoch_of(name) is not None
            if handle.uri in self._registry.files:
                return self._registry.files[handle.uri]
        body = StoredBody(storage, handle.uri, storage.size(handle.uri) if is_owned else 0)
        return PhysicalFile(uri=handle.uri, scope=handle.scope, body=body, is_owned=is_owned, is_closed=True)

    def _restore(
        self, handle: SegmentFileStateHandle, file: PhysicalFile, subtask: SubtaskKey, checkpoint_id: int
    ) -> None:
        segment = self._registry.find(handle.logical_id) or LogicalFile(
            logical_id=handle.logical_id,
            physical=file,
            start=handle.start,
            length=handle.length,
            subtask=subtask,
            checkpoint_id=checkpoint_id,
            last_used=checkpoint_id,
            sha256=handle.sha256,
        )
        if self._registry.find(handle.logical_id) is None:
            self._registry.add(segment)
        segment.use_in(checkpoint_id)
        self._refer(segment, checkpoint_id)

    def _refer(self, segment: LogicalFile, checkpoint_id: int) -> None:
        if segment.physical.is_owned:
            self._released.setdefault(checkpoint_id, set())
            self._directory(segment.subtask, segment.physical.scope).refer(checkpoint_id)

    def _find_all(self, handles: Sequence[SegmentFileStateHandle]) -> list[LogicalFile]:
        found = [self._registry.find(handle.logical_id) for handle in handles]
        segments = [segment for segment in found if segment is not None]
        if len(segments) < len(found):
            raise CoordinatorError(
                f"Expected segments registered with this manager, found {len(found) - len(segments)} unknown; "
                "check could_reuse_previous_state_handle and rewrite their state."
            )
        return segments

    def _directory(self, subtask: SubtaskKey, scope: CheckpointedStateScope) -> ManagedDirectory:
        if subtask not in self._shared:
            raise CoordinatorError(f"Expected a registered subtask, found {subtask}; call register_subtask first.")
        return self._shared[subtask] if scope is CheckpointedStateScope.SHARED else self._exclusive

    def _require_ready(self) -> tuple[MergingDirectories, CheckpointStorage]:
        if self._is_closed:
            raise CoordinatorError("Expected an open file merging manager, found a closed one; create a new manager.")
        if self._directories is None or self._storage is None:
            raise CoordinatorError("Expected a manager with directories, found none; call init_file_system first.")
        return self._directories, self._storage

    def _delete_unused(self) -> None:
        with self._changed:
            unused = [*self._registry.pop_unused(), *self._undeleted]
            self._undeleted = []
        failed = [file for file in unused if not _try_delete(file)]
        if failed:
            log.warning("%s merged files could not be deleted; a retry or a sweep deletes them", len(failed))
            with self._changed:
                self._undeleted.extend(failed)


@dataclass(frozen=True, slots=True)
class _StreamOwner:
    """Access of one stream to its manager."""

    manager: FileMergingSnapshotManager
    subtask: SubtaskKey
    checkpoint_id: int
    scope: CheckpointedStateScope

    def acquire(self) -> PhysicalFile:
        return self.manager._acquire(self.subtask, self.checkpoint_id, self.scope)

    def finish(self, file: PhysicalFile, start: int, length: int, sha256: str) -> SegmentFileStateHandle:
        segment = LogicalFile(
            logical_id=new_key(),
            physical=file,
            start=start,
            length=length,
            subtask=self.subtask,
            checkpoint_id=self.checkpoint_id,
            last_used=self.checkpoint_id,
            sha256=sha256,
        )
        return self.manager._finish(segment)

    def release(self, file: PhysicalFile) -> None:
        self.manager._return(file, is_broken=False)

    def fail(self, file: PhysicalFile) -> None:
        self.manager._return(file, is_broken=True)


def _try_delete(file: PhysicalFile) -> bool:
    try:
        file.body.delete()
    except StateCheckError as error:
        log.debug("A merged file could not be deleted: %s", error)
        return False
    return True
