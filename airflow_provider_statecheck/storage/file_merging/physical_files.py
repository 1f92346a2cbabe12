"""
Physical files, their segments, pools and space statistics.

The manager's lock guards all objects of this module. A blocking pool releases the lock only while it waits.
"""

from __future__ import annotations

import logging
import math
import re
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Self

from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.states.handles import CheckpointedStateScope, SegmentFileStateHandle
from airflow_provider_statecheck.exceptions import CoordinatorError, InvalidConfigurationError
from airflow_provider_statecheck.storage.file_merging.file_bodies import FileBody, is_local, local_path

log = logging.getLogger(__name__)

_SPECIAL = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskKey:
    """Key of one parallel subtask of an operator; a rescaled operator has new keys."""

    job_id: JobId
    operator_id: OperatorId
    subtask_index: int
    parallelism: int

    def __post_init__(self) -> None:
        if not 0 <= self.subtask_index < self.parallelism:
            raise InvalidConfigurationError(
                f"Expected a subtask index of at least 0 and below the parallelism {self.parallelism}, found {self.subtask_index}."
            )

    @property
    def managed_directory(self) -> str:
        """Return its directory below ``shared``: ``<operator id>/merged-<index>-<parallelism>``."""
        return f"{self.operator_id}/merged-{self.subtask_index}-{self.parallelism}"


def manager_id(job_id: JobId, executor_id: str) -> str:
    """
    Return the directory name of one executor process below ``taskowned``.

    :param executor_id: A text unique among the processes of the job; special characters are replaced by ``_``.
    :raises InvalidConfigurationError: if it is empty.
    """
    if not executor_id.strip():
        raise InvalidConfigurationError("Expected the id of an executor process, found none; pass a unique id.")
    return f"job_{job_id}_tm_{_SPECIAL.sub('_', executor_id)}"


@dataclass(eq=False, slots=True, kw_only=True)
class PhysicalFile:
    """
    A file on storage that holds the segments of one or more streams.

    An owned file is deleted once, when it is closed and no stream or segment uses it.
    """

    uri: str
    scope: CheckpointedStateScope
    body: FileBody
    is_owned: bool = True
    """Whether the file is located in a directory of this manager; other files are read-only."""
    is_closed: bool = False
    """Whether the file accepts no further segments."""
    is_reusable: bool = True
    """Whether later checkpoints may reference its segments."""
    is_in_use: bool = False
    """Whether a stream is writing to the file."""
    segments: set[LogicalFile] = field(default_factory=set)
    """Live segments of the file."""
    live_bytes: int = 0
    """Total size of the live segments in bytes."""

    @property
    def ref_count(self) -> int:
        """Return the number of live segments."""
        return len(self.segments)

    @property
    def wasted_bytes(self) -> int:
        """Return the number of bytes that belong to no live segment."""
        return max(self.body.size - self.live_bytes, 0)

    @property
    def is_unused(self) -> bool:
        """Return whether the file is closed and no stream or live segment uses it."""
        return self.is_closed and not (self.is_in_use or self.segments)


@dataclass(eq=False, slots=True, kw_only=True)
class LogicalFile:
    """One segment of a physical file, written by one stream."""

    logical_id: str
    physical: PhysicalFile
    start: int
    length: int
    subtask: SubtaskKey
    checkpoint_id: int
    """The checkpoint that wrote the segment, or from which it was restored."""
    last_used: int
    """The newest checkpoint that references the segment."""
    sha256: str = ""

    def use_in(self, checkpoint_id: int) -> None:
        """Record a reference from a checkpoint; an older checkpoint than ``last_used`` has no effect."""
        self.last_used = max(self.last_used, checkpoint_id)

    def is_referenced_by(self, checkpoint_id: int) -> bool:
        """Return whether a checkpoint may reference the segment."""
        return self.checkpoint_id <= checkpoint_id <= self.last_used

    @property
    def handle(self) -> SegmentFileStateHandle:
        """Return the state handle of the segment."""
        return SegmentFileStateHandle(
            uri=self.physical.uri,
            start=self.start,
            length=self.length,
            scope=self.physical.scope,
            logical_id=self.logical_id,
            sha256=self.sha256,
        )


class SegmentRegistry:
    """
    Live segments and physical files of a manager, indexed by checkpoint and subtask.

    The entry of a checkpoint is removed with its last segment. A later notification therefore compensates for a lost one.
    """

    def __init__(self) -> None:
        self.files: dict[str, PhysicalFile] = {}
        self._segments: dict[str, LogicalFile] = {}
        self._uploads: dict[int, dict[SubtaskKey, set[LogicalFile]]] = {}
        self._touched: set[PhysicalFile] = set()

    def add(self, segment: LogicalFile) -> None:
        """Register a new segment and its file."""
        physical = segment.physical
        self.files[physical.uri] = physical
        self._segments[segment.logical_id] = segment
        self._uploads.setdefault(segment.checkpoint_id, {}).setdefault(segment.subtask, set()).add(segment)
        physical.segments.add(segment)
        physical.live_bytes += segment.length

    def find(self, logical_id: str) -> LogicalFile | None:
        """Return the live segment with this id, or ``None``."""
        return self._segments.get(logical_id)

    def discard(self, segment: LogicalFile, checkpoint_id: int) -> bool:
        """Discard a segment unless a newer checkpoint references it; return whether it was discarded."""
        if checkpoint_id < segment.last_used or self._segments.get(segment.logical_id) is not segment:
            return False
        del self._segments[segment.logical_id]
        self._forget_upload(segment)
        segment.physical.segments.discard(segment)
        segment.physical.live_bytes -= segment.length
        self._touched.add(segment.physical)
        return True

    def discard_up_to(self, subtasks: Collection[SubtaskKey], checkpoint_id: int) -> None:
        """Discard segments of these subtasks and of checkpoints up to this id that no newer checkpoint references."""
        for uploaded_in in [i for i in self._uploads if i <= checkpoint_id]:
            for subtask in subtasks:
                self._discard_all(self._uploads.get(uploaded_in, {}).get(subtask, ()), checkpoint_id)

    def discard_of(self, subtask: SubtaskKey, checkpoint_id: int) -> None:
        """Discard segments of one subtask and checkpoint that no newer checkpoint references."""
        self._discard_all(self._uploads.get(checkpoint_id, {}).get(subtask, ()), checkpoint_id)

    def has_uploads(self, checkpoint_id: int) -> bool:
        """Return whether the checkpoint has live segments of its own uploads."""
        return checkpoint_id in self._uploads

    def uploaders(self) -> set[SubtaskKey]:
        """Return the subtasks that have live segments."""
        return {subtask for uploads in self._uploads.values() for subtask in uploads}

    def close(self, file: PhysicalFile) -> None:
        """Close a file for further segments."""
        file.is_closed = True
        self._touched.add(file)

    def pop_unused(self) -> list[PhysicalFile]:
        """Unregister unused files and return the owned files among them, each only once."""
        unused = [file for file in self._touched if file.is_unused]
        self._touched.clear()
        for file in unused:
            self.files.pop(file.uri, None)
        return [file for file in unused if file.is_owned]

    def _discard_all(self, segments: Iterable[LogicalFile], checkpoint_id: int) -> None:
        for segment in list(segments):
            self.discard(segment, checkpoint_id)

    def _forget_upload(self, segment: LogicalFile) -> None:
        of_checkpoint = self._uploads[segment.checkpoint_id]
        of_checkpoint[segment.subtask].discard(segment)
        if not of_checkpoint[segment.subtask]:
            del of_checkpoint[segment.subtask]
        if not of_checkpoint:
            del self._uploads[segment.checkpoint_id]


@dataclass(eq=False, slots=True)
class ManagedDirectory:
    """
    A directory of merged files and the checkpoints that reference it.

    The references are a set of ids and not a count, because a notification may be lost or repeated.
    """

    uri: str
    checkpoint_ids: set[int] = field(default_factory=set)

    def refer(self, checkpoint_id: int) -> None:
        """Add a reference from a checkpoint."""
        self.checkpoint_ids.add(checkpoint_id)

    def forget(self, checkpoint_id: int) -> None:
        """Remove the reference from a checkpoint."""
        self.checkpoint_ids.discard(checkpoint_id)

    def subsume(self, checkpoint_id: int) -> None:
        """Remove the references from this checkpoint and all older ones."""
        self.checkpoint_ids = {i for i in self.checkpoint_ids if i > checkpoint_id}

    def remove_if_unused(self) -> None:
        """Remove the local directory if it is empty and unreferenced."""
        if self.checkpoint_ids or not is_local(self.uri):
            return
        try:
            # Not recursively: another attempt may write to this directory.
            local_path(self.uri).rmdir()
        except OSError as error:
            log.debug("The directory of merged files was not removed: %s", type(error).__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceStatistics:
    """Number and size of the owned physical files and of their live segments."""

    physical_file_count: int
    physical_file_bytes: int
    logical_file_count: int
    logical_file_bytes: int

    @classmethod
    def of(cls, files: Iterable[PhysicalFile]) -> Self:
        """Return the statistics of the owned files among ``files``."""
        owned = [file for file in files if file.is_owned]
        return cls(
            physical_file_count=len(owned),
            physical_file_bytes=sum(file.body.size for file in owned),
            logical_file_count=sum(file.ref_count for file in owned),
            logical_file_bytes=sum(file.live_bytes for file in owned),
        )

    @property
    def amplification(self) -> float:
        """Return the physical bytes per logical byte, or 1 without logical bytes."""
        return self.physical_file_bytes / self.logical_file_bytes if self.logical_file_bytes else 1.0


def files_to_retire(files: Iterable[PhysicalFile], max_amplification: float) -> list[PhysicalFile]:
    """
    Return the files to retire for the space amplification to fall below its limit.

    Later checkpoints rewrite the segments of a retired file. Files with the largest wasted share come first. The wasted
    bytes of files retired earlier are not counted.

    :param files: The owned files of the manager.
    :param max_amplification: Maximum physical bytes per logical byte; infinity disables the limit.
    """
    known = list(files)
    limit = max_amplification * sum(f.live_bytes for f in known)
    if math.isinf(max_amplification) or not limit:
        return []
    projected = sum(f.body.size if f.is_reusable else f.live_bytes for f in known)
    chosen: list[PhysicalFile] = []
    for file in sorted((f for f in known if f.is_reusable and f.wasted_bytes), key=_wasted_share, reverse=True):
        if projected <= limit:
            break
        projected -= file.wasted_bytes
        chosen.append(file)
    return chosen


def _wasted_share(file: PhysicalFile) -> float:
    return file.wasted_bytes / file.body.size


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolKey:
    """Key of a pool; streams with equal keys share its files."""

    checkpoint_id: int | None
    """``None`` if checkpoints share files."""
    subtask: SubtaskKey | None
    """``None`` if subtasks share files."""
    scope: CheckpointedStateScope


class NonBlockingPool:
    """
    Pool that creates a file if no idle file is available.

    :param create: Creates a physical file without I/O.
    """

    def __init__(self, create: Callable[[], PhysicalFile]) -> None:
        self._create = create
        self._idle: list[PhysicalFile] = []
        self._acquired: set[PhysicalFile] = set()
        self.is_closed = False

    def acquire(self) -> PhysicalFile:
        """Return a file for exclusive use by one stream."""
        while self._idle:
            file = self._idle.pop()
            if _is_writable(file):
                return self._acquire(file)
        return self._acquire(self._create())

    def release(self, file: PhysicalFile, max_file_size: int) -> None:
        """Return a file to the pool; a full, sealed or closed file is not reused."""
        self._acquired.discard(file)
        file.is_in_use = False
        if self.is_closed or file.body.size >= max_file_size or not _is_writable(file):
            file.is_closed = True
        else:
            self._idle.append(file)

    def close(self) -> list[PhysicalFile]:
        """Close the pool and return its idle files, closed; acquired files are closed on release."""
        self.is_closed = True
        idle, self._idle = self._idle, []
        for file in idle:
            file.is_closed = True
        return idle

    def _acquire(self, file: PhysicalFile) -> PhysicalFile:
        file.is_in_use = True
        self._acquired.add(file)
        return file


class BlockingPool(NonBlockingPool):
    """
    Pool with a bounded number of open files; a stream waits until another stream releases a file.

    A thread must close a stream before it writes to the next stream.

    :param changed: Condition that is notified when a file is released or the pool closes.
    :param capacity: Returns the current maximum number of open files.
    """

    def __init__(
        self, create: Callable[[], PhysicalFile], changed: threading.Condition, capacity: Callable[[], int]
    ) -> None:
        super().__init__(create)
        self._changed = changed
        self._capacity = capacity

    def acquire(self) -> PhysicalFile:
        """Wait for a file and return it for exclusive use by one stream."""
        self._changed.wait_for(lambda: self.is_closed or bool(self._idle) or len(self._acquired) < self._capacity())
        if self.is_closed:
            raise CoordinatorError(
                "Expected an open pool of merged files, found one whose checkpoint or manager ended."
            )
        return super().acquire()


def _is_writable(file: PhysicalFile) -> bool:
    return not (file.is_closed or file.body.is_sealed) and file.is_reusable
