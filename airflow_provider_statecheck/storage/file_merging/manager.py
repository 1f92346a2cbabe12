"""File merging manager: assigns state to physical files and deletes unused ones."""

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
    files_to_give_up,
)
from airflow_provider_statecheck.storage.file_merging.stream import FileMergingCheckpointStateOutputStream
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import redact

MIB = 1024 * 1024


class FileMergingType(StrEnum):
    """How long a physical file takes segments."""

    WITHIN_CHECKPOINT = "within_checkpoint"
    """Those of one checkpoint only."""
    ACROSS_CHECKPOINTS = "across_checkpoints"
    """Those of any checkpoint, until the file is full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMergingOptions:
    """Defaults are those of Flink."""

    merging_type: FileMergingType = FileMergingType.WITHIN_CHECKPOINT
    max_file_size: int = 32 * MIB
    """In bytes; a file that reaches it takes no more."""
    max_space_amplification: float = 2.0
    """How many physical bytes there may be for each logical byte; infinity sets no limit."""
    max_subtasks_per_file: int = 4
    """How many subtasks share a file of a blocking pool."""
    is_pool_blocking: bool = False
    """Whether a stream waits for a file rather than begin another one."""

    def __post_init__(self) -> None:
        _require(self.max_file_size > 0, "max_file_size above 0", self.max_file_size)
        amplification = self.max_space_amplification
        _require(amplification > 1 and not math.isnan(amplification), "max_space_amplification above 1", amplification)
        _require(self.max_subtasks_per_file >= 1, "max_subtasks_per_file of at least 1", self.max_subtasks_per_file)


def _require(is_met: bool, expected: str, found: float) -> None:
    if not is_met:
        raise InvalidConfigurationError(f"Expected {expected}, found {found}.")


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergingDirectories:
    """Where a manager writes."""

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
    Merges the files of one executor process; any thread may call it.

    ``init_file_system`` once, ``register_subtask`` for each subtask, then streams. A subtask calls ``make_durable`` after its
    last stream of a checkpoint and before the checkpoint is acknowledged, since until then bytes may exist on this machine
    only. It passes on what became of each checkpoint; a notification may be lost or come twice.

    Nothing is deleted but files of its own directories, and those only when closed and unreferenced.

    :param manager_id: Name of the process's directory below ``taskowned``.
    :param epoch: Of the attempt that writes; it is in each file's name, so that a sweep knows whose the file was.
    :param options: How files are shared.
    """

    def __init__(self, manager_id: str, epoch: int, options: FileMergingOptions | None = None) -> None:
        self._id = manager_id
        self._epoch = epoch
        self._options = options or FileMergingOptions()
        self._changed = threading.Condition()
        self._registry = SegmentRegistry()
        self._pools: dict[PoolKey, NonBlockingPool] = {}
        self._lenders: dict[PhysicalFile, NonBlockingPool] = {}
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
        Say where to write; no directory is made before there is something in it.

        :param write_buffer_size: How many bytes a stream or file keeps in memory.
        :raises InvalidConfigurationError: if it was said otherwise before, or a directory is not below ``base``.
        """
        asked = MergingDirectories(base=base, shared=shared, taskowned=taskowned, write_buffer_size=write_buffer_size)
        with self._changed:
            if self._directories not in (None, asked):
                raise InvalidConfigurationError(
                    f"Expected the directories of the first call, found {redact(base)}; use another manager."
                )
            if self._directories is None:
                self._storage, self._directories = storage, asked
                self._exclusive = ManagedDirectory(f"{taskowned}/{self._id}")

    def register_subtask(self, subtask: SubtaskKey) -> None:
        """
        Let a subtask write; it may be registered already.

        :raises CoordinatorError: before ``init_file_system`` or after ``close``.
        """
        with self._changed:
            directories, _ = self._require_ready()
            self._registered.add(subtask)
            self._shared.setdefault(subtask, ManagedDirectory(f"{directories.shared}/{subtask.managed_directory}"))
            self._changed.notify_all()

    def unregister_subtask(self, subtask: SubtaskKey) -> None:
        """Wait for no more notifications of a subtask; its segments go when another one hears that they are subsumed."""
        with self._changed:
            self._registered.discard(subtask)
            self._release(list(self._released), None)
        self._delete_done()

    def managed_directory(self, subtask: SubtaskKey, scope: CheckpointedStateScope) -> str:
        """
        Return where files of a subtask lie.

        :raises CoordinatorError: if it is not registered.
        """
        with self._changed:
            return self._directory(subtask, scope).uri

    def create_checkpoint_state_output_stream(
        self, subtask: SubtaskKey, checkpoint_id: int, scope: CheckpointedStateScope
    ) -> FileMergingCheckpointStateOutputStream:
        """
        Open a stream; it takes a file with its first byte.

        :raises CoordinatorError: if the subtask is not registered, or the manager closed.
        """
        with self._changed:
            directories, _ = self._require_ready()
            self._directory(subtask, scope)
        owner = _StreamOwner(self, subtask, checkpoint_id, scope)
        return FileMergingCheckpointStateOutputStream(owner, directories.write_buffer_size)

    def make_durable(self, subtask: SubtaskKey, checkpoint_id: int) -> None:
        """
        Return when storage has every byte that a subtask's handles of a checkpoint name; call it before acknowledging.

        :raises StorageError: if the storage fails; the checkpoint must not be acknowledged, and the call may be repeated.
        """
        for file in self._not_durable(subtask, checkpoint_id):
            self._make_file_durable(file)
        self._delete_done()

    def could_reuse_previous_state_handle(self, handle: StreamStateHandle) -> bool:
        """Tell whether a later checkpoint may name a handle again; else its bytes have to be written anew."""
        with self._changed:
            segment = self._registry.find(handle.logical_id) if isinstance(handle, SegmentFileStateHandle) else None
            return segment is not None and segment.physical.is_reusable

    def reuse_previous_state_handles(self, checkpoint_id: int, handles: Iterable[StreamStateHandle]) -> None:
        """
        Note that a checkpoint names handles of earlier ones; what is no segment needs no note.

        :raises CoordinatorError: if a segment is not known here, since its bytes may be gone; then nothing is noted.
        """
        with self._changed:
            for segment in self._known([h for h in handles if isinstance(h, SegmentFileStateHandle)]):
                segment.use_in(checkpoint_id)
                self._refer(segment, checkpoint_id)

    def restore_state_handles(
        self, checkpoint_id: int, subtask: SubtaskKey, handles: Iterable[StreamStateHandle]
    ) -> None:
        """
        Know the segments of the checkpoint from which a subtask was restored.

        Files in the directories of this manager are its own from now on; those elsewhere are only read.

        :raises CheckpointNotFoundError: if an own file is missing; then nothing is known.
        :raises CoordinatorError: if the subtask is not registered.
        """
        segments = [handle for handle in handles if isinstance(handle, SegmentFileStateHandle)]
        one_of_each_file = {handle.uri: handle for handle in segments}
        files = {uri: self._restored_file(handle, subtask) for uri, handle in one_of_each_file.items()}
        with self._changed:
            for handle in segments:
                self._restore(handle, self._registry.files.get(handle.uri, files[handle.uri]), subtask, checkpoint_id)

    def notify_checkpoint_complete(self, subtask: SubtaskKey, checkpoint_id: int) -> None:
        """
        Hear that a checkpoint was completed; nothing is deleted.

        :raises StorageError: if the subtask never made it durable and that fails now.
        """
        if not self._is_closed and self._not_durable(subtask, checkpoint_id):
            log.error("Checkpoint %s was completed before its merged files were durable; they are now", checkpoint_id)
            self.make_durable(subtask, checkpoint_id)

    def notify_checkpoint_aborted(self, subtask: SubtaskKey, checkpoint_id: int) -> None:
        """Give up what a subtask uploaded in a checkpoint that will never be completed."""
        with self._changed:
            if self._is_closed:
                return
            self._registry.discard_of(subtask, checkpoint_id)
            if subtask in self._shared:
                self._shared[subtask].forget(checkpoint_id)
            self._release([checkpoint_id], subtask)
            self._limit_space()
        self._delete_done()

    def notify_checkpoint_subsumed(self, subtask: SubtaskKey, checkpoint_id: int) -> None:
        """Give up what a subtask uploaded in a checkpoint or in any before it and no newer one names."""
        with self._changed:
            if self._is_closed:
                return
            # Those who hear nothing any more name nothing any more either.
            subtasks = {subtask} | (self._registry.uploaders() - self._registered)
            self._registry.discard_up_to(subtasks, checkpoint_id)
            for known in subtasks & self._shared.keys():
                self._shared[known].subsume(checkpoint_id)
            self._release([i for i in self._released if i <= checkpoint_id], subtask)
            self._limit_space()
        self._delete_done()

    @property
    def statistics(self) -> SpaceStatistics:
        """Return what the files hold now."""
        with self._changed:
            return SpaceStatistics.of(self._registry.files.values())

    def close(self) -> None:
        """
        End; files that a checkpoint may name stay, directories of no checkpoint go if they are empty.

        What was not made durable is given up: no checkpoint that was acknowledged names it.
        """
        with self._changed:
            self._is_closed = True
            for pool in self._pools.values():
                pool.close()
            for file in self._registry.files.values():
                self._registry.close(file)
            self._changed.notify_all()
        self._delete_done()
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
            self._lenders[file] = pool
            self._registry.files[file.uri] = file
            directory.refer(checkpoint_id)
            self._released.setdefault(checkpoint_id, set())
            return file

    def _finish(self, segment: LogicalFile) -> SegmentFileStateHandle:
        file = segment.physical
        with self._changed:
            if not self._is_closed:
                self._registry.add(segment)
            self._give_back(file)
        if self._is_closed:
            self._delete_done()
            self._require_ready()
        if file.is_closed and not file.body.takes_parts:
            self._publish_early(file)
        self._delete_done()
        return segment.handle

    def _return(self, file: PhysicalFile, *, is_broken: bool) -> None:
        with self._changed:
            file.is_closed = file.is_closed or is_broken
            self._give_back(file)
        self._delete_done()

    def _give_back(self, file: PhysicalFile) -> None:
        # To the pool it came from: its checkpoint may have ended meanwhile, and another pool may have the key.
        self._lenders.pop(file).give_back(file, self._options.max_file_size)
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
        for file in files_to_give_up(owned, self._options.max_space_amplification):
            file.is_reusable = False
            self._registry.close(file)

    def _not_durable(self, subtask: SubtaskKey, checkpoint_id: int) -> list[PhysicalFile]:
        with self._changed:
            pending = [file for file in self._registry.files.values() if not file.body.is_durable]
            return [
                file
                for file in pending
                if any(s.subtask == subtask and s.is_named_by(checkpoint_id) for s in file.segments)
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
            # make_durable tries again, and says so to whoever wants to acknowledge.
            log.warning("A full file of merged state is not on storage yet: %s", error)

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

    def _known(self, handles: Sequence[SegmentFileStateHandle]) -> list[LogicalFile]:
        found = [self._registry.find(handle.logical_id) for handle in handles]
        segments = [segment for segment in found if segment is not None]
        if len(segments) < len(found):
            raise CoordinatorError(
                f"Expected segments that this manager knows, found {len(found) - len(segments)} others; "
                "ask could_reuse_previous_state_handle first and write their state anew."
            )
        return segments

    def _directory(self, subtask: SubtaskKey, scope: CheckpointedStateScope) -> ManagedDirectory:
        if subtask not in self._shared:
            raise CoordinatorError(f"Expected a registered subtask, found {subtask}; call register_subtask first.")
        return self._shared[subtask] if scope is CheckpointedStateScope.SHARED else self._exclusive

    def _require_ready(self) -> tuple[MergingDirectories, CheckpointStorage]:
        if self._is_closed:
            raise CoordinatorError("Expected an open manager of merged files, found a closed one.")
        if self._directories is None or self._storage is None:
            raise CoordinatorError("Expected a manager that knows its directories; call init_file_system first.")
        return self._directories, self._storage

    def _delete_done(self) -> None:
        with self._changed:
            done = [*self._registry.take_done(), *self._undeleted]
            self._undeleted = []
        failed = [file for file in done if not _is_deleted(file)]
        if failed:
            log.warning("%s merged files could not be deleted; they are tried again, or left to a sweep", len(failed))
            with self._changed:
                self._undeleted.extend(failed)


@dataclass(frozen=True, slots=True)
class _StreamOwner:
    """What a stream may ask of its manager."""

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

    def give_back(self, file: PhysicalFile) -> None:
        self.manager._return(file, is_broken=False)

    def fail(self, file: PhysicalFile) -> None:
        self.manager._return(file, is_broken=True)


def _is_deleted(file: PhysicalFile) -> bool:
    try:
        file.body.delete()
    except StateCheckError as error:
        log.debug("A merged file could not be deleted: %s", error)
        return False
    return True
