"""
Physical files, their segments, pools and statistics.

A pool is used under its manager's lock, which it gives up only while it waits.
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

_SPECIAL = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskKey:
    """One parallel part of an operator; another parallelism makes it another one."""

    job_id: JobId
    operator_id: OperatorId
    subtask_index: int
    parallelism: int

    def __post_init__(self) -> None:
        if not 0 <= self.subtask_index < self.parallelism:
            raise InvalidConfigurationError(
                f"Expected a subtask index from 0 to before the parallelism {self.parallelism}, found {self.subtask_index}."
            )

    @property
    def managed_directory(self) -> str:
        """Return where below ``shared`` its files are: ``<operator id>/merged-<index>-<parallelism>``."""
        return f"{self.operator_id}/merged-{self.subtask_index}-{self.parallelism}"


def manager_id(job_id: JobId, executor_id: str) -> str:
    """
    Return the name of the directory below ``taskowned`` of one executor process.

    :param executor_id: Any text that no other process of the job has; what directories may not hold becomes ``_``.
    :raises InvalidConfigurationError: if it is empty.
    """
    if not executor_id.strip():
        raise InvalidConfigurationError("Expected the id of an executor process, found none.")
    return f"job_{job_id}_tm_{_SPECIAL.sub('_', executor_id)}"


@dataclass(eq=False, slots=True, kw_only=True)
class PhysicalFile:
    """
    A file on storage; what is said of it here holds under the manager's lock.

    It is deleted when it is closed, unreferenced and owned, once.
    """

    uri: str
    scope: CheckpointedStateScope
    body: FileBody
    is_owned: bool = True
    """Whether it lies in a directory of this manager; any other file is only read."""
    is_closed: bool = False
    """Whether it takes no more segments."""
    is_reusable: bool = True
    """Whether later checkpoints may name its segments."""
    is_in_use: bool = False
    """Whether a stream writes to it."""
    segments: set[LogicalFile] = field(default_factory=set)
    """Those that are live."""
    live_bytes: int = 0
    """How many bytes they hold."""

    @property
    def ref_count(self) -> int:
        """Return how many live segments it has."""
        return len(self.segments)

    @property
    def wasted_bytes(self) -> int:
        """Return how many of its bytes nobody needs."""
        return max(self.body.size - self.live_bytes, 0)

    @property
    def is_done(self) -> bool:
        """Tell whether nobody reads or writes it any more."""
        return self.is_closed and not (self.is_in_use or self.segments)


@dataclass(eq=False, slots=True, kw_only=True)
class LogicalFile:
    """One segment: what one stream wrote."""

    logical_id: str
    physical: PhysicalFile
    start: int
    length: int
    subtask: SubtaskKey
    checkpoint_id: int
    """The checkpoint that wrote it, or from which it was restored."""
    last_used: int
    """The newest checkpoint that names it."""
    sha256: str = ""

    def use_in(self, checkpoint_id: int) -> None:
        """Note that a checkpoint names it; an older one than before changes nothing."""
        self.last_used = max(self.last_used, checkpoint_id)

    def is_named_by(self, checkpoint_id: int) -> bool:
        """Tell whether a checkpoint may name it."""
        return self.checkpoint_id <= checkpoint_id <= self.last_used

    @property
    def handle(self) -> SegmentFileStateHandle:
        """Return what the checkpoint names it by."""
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
    Books of a manager, kept under its lock.

    A checkpoint's entry goes with its last segment, so that a notification that never came is made up for by a later one.
    """

    def __init__(self) -> None:
        self.files: dict[str, PhysicalFile] = {}
        self._segments: dict[str, LogicalFile] = {}
        self._uploads: dict[int, dict[SubtaskKey, set[LogicalFile]]] = {}
        self._touched: set[PhysicalFile] = set()

    def add(self, segment: LogicalFile) -> None:
        """Book a new segment and its file."""
        physical = segment.physical
        self.files[physical.uri] = physical
        self._segments[segment.logical_id] = segment
        self._uploads.setdefault(segment.checkpoint_id, {}).setdefault(segment.subtask, set()).add(segment)
        physical.segments.add(segment)
        physical.live_bytes += segment.length

    def find(self, logical_id: str) -> LogicalFile | None:
        """Return a live segment."""
        return self._segments.get(logical_id)

    def discard(self, segment: LogicalFile, checkpoint_id: int) -> bool:
        """Give up a segment unless a newer checkpoint names it; tell whether that happened now."""
        if checkpoint_id < segment.last_used or self._segments.get(segment.logical_id) is not segment:
            return False
        del self._segments[segment.logical_id]
        self._forget_upload(segment)
        segment.physical.segments.discard(segment)
        segment.physical.live_bytes -= segment.length
        self._touched.add(segment.physical)
        return True

    def discard_up_to(self, subtasks: Collection[SubtaskKey], checkpoint_id: int) -> None:
        """Give up what these subtasks uploaded in this checkpoint or before and no newer one names."""
        for uploaded_in in [i for i in self._uploads if i <= checkpoint_id]:
            for subtask in subtasks:
                self._discard_all(self._uploads.get(uploaded_in, {}).get(subtask, ()), checkpoint_id)

    def discard_of(self, subtask: SubtaskKey, checkpoint_id: int) -> None:
        """Give up what a subtask uploaded in this one checkpoint and no newer one names."""
        self._discard_all(self._uploads.get(checkpoint_id, {}).get(subtask, ()), checkpoint_id)

    def has_uploads(self, checkpoint_id: int) -> bool:
        """Tell whether a segment that this checkpoint uploaded is live."""
        return checkpoint_id in self._uploads

    def uploaders(self) -> set[SubtaskKey]:
        """Return the subtasks that have live segments."""
        return {subtask for uploads in self._uploads.values() for subtask in uploads}

    def close(self, file: PhysicalFile) -> None:
        """Let a file take no more segments."""
        file.is_closed = True
        self._touched.add(file)

    def take_done(self) -> list[PhysicalFile]:
        """Forget the files that nobody needs, and return those of them that are ours: each of them once."""
        done = [file for file in self._touched if file.is_done]
        self._touched.clear()
        for file in done:
            self.files.pop(file.uri, None)
        return [file for file in done if file.is_owned]

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


log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class ManagedDirectory:
    """
    A directory and the checkpoints that refer to it.

    Ids rather than a number of them: a notification that is lost or comes twice must not change the count.
    """

    uri: str
    checkpoint_ids: set[int] = field(default_factory=set)

    def refer(self, checkpoint_id: int) -> None:
        """Note that a checkpoint may have files here."""
        self.checkpoint_ids.add(checkpoint_id)

    def forget(self, checkpoint_id: int) -> None:
        """Note that a checkpoint is not needed."""
        self.checkpoint_ids.discard(checkpoint_id)

    def subsume(self, checkpoint_id: int) -> None:
        """Note that neither this checkpoint nor an older one is needed."""
        self.checkpoint_ids = {i for i in self.checkpoint_ids if i > checkpoint_id}

    def remove_if_unused(self) -> None:
        """Remove it if no checkpoint refers to it and nothing is in it; object stores have no directories."""
        if self.checkpoint_ids or not is_local(self.uri):
            return
        try:
            # Never with what is in it: another attempt may write here.
            local_path(self.uri).rmdir()
        except OSError as error:
            log.debug("The directory of merged files stays: %s", type(error).__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceStatistics:
    """Counts and bytes; files of others, which are only read, are left out."""

    physical_file_count: int
    physical_file_bytes: int
    logical_file_count: int
    logical_file_bytes: int

    @classmethod
    def of(cls, files: Iterable[PhysicalFile]) -> Self:
        """Count."""
        known = [file for file in files if file.is_owned]
        return cls(
            physical_file_count=len(known),
            physical_file_bytes=sum(file.body.size for file in known),
            logical_file_count=sum(file.ref_count for file in known),
            logical_file_bytes=sum(file.live_bytes for file in known),
        )

    @property
    def amplification(self) -> float:
        """Return how many physical bytes there are for each logical byte; 1 where there is none."""
        return self.physical_file_bytes / self.logical_file_bytes if self.logical_file_bytes else 1.0


def files_to_give_up(files: Iterable[PhysicalFile], max_amplification: float) -> list[PhysicalFile]:
    """
    Return the files whose segments shall be written anew, so that the space comes under its limit.

    Those with the largest wasted share come first. A file that was given up before counts as if it were gone already.

    :param files: Files of the manager, without those of others.
    :param max_amplification: Physical bytes for each logical byte; infinity sets no limit.
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
    """Streams of equal keys share files."""

    checkpoint_id: int | None
    """``None`` where files are shared over checkpoints."""
    subtask: SubtaskKey | None
    """``None`` where they are shared by subtasks."""
    scope: CheckpointedStateScope


class NonBlockingPool:
    """
    Gives a new file where none waits.

    :param create: Makes a file; it does no I/O.
    """

    def __init__(self, create: Callable[[], PhysicalFile]) -> None:
        self._create = create
        self._idle: list[PhysicalFile] = []
        self._lent: set[PhysicalFile] = set()
        self.is_closed = False

    def acquire(self) -> PhysicalFile:
        """Lend a file to one stream."""
        while self._idle:
            file = self._idle.pop()
            if _takes_more(file):
                return self._lend(file)
        return self._lend(self._create())

    def give_back(self, file: PhysicalFile, max_file_size: int) -> None:
        """Take a file from its stream; one that is full, sealed or closed does not go to another stream."""
        self._lent.discard(file)
        file.is_in_use = False
        if self.is_closed or file.body.size >= max_file_size or not _takes_more(file):
            file.is_closed = True
        else:
            self._idle.append(file)

    def close(self) -> list[PhysicalFile]:
        """Close the files that wait, and those that are lent as soon as they come back; return the former."""
        self.is_closed = True
        idle, self._idle = self._idle, []
        for file in idle:
            file.is_closed = True
        return idle

    def _lend(self, file: PhysicalFile) -> PhysicalFile:
        file.is_in_use = True
        self._lent.add(file)
        return file


class BlockingPool(NonBlockingPool):
    """
    Has a bounded number of open files; a stream waits for one to come back.

    One thread must therefore close a stream before it writes to the next one.

    :param changed: Notified whenever a file comes back or the pool closes.
    :param capacity: Tells how many files there may be now.
    """

    def __init__(
        self, create: Callable[[], PhysicalFile], changed: threading.Condition, capacity: Callable[[], int]
    ) -> None:
        super().__init__(create)
        self._changed = changed
        self._capacity = capacity

    def acquire(self) -> PhysicalFile:
        """Lend a file to one stream, as soon as there is one."""
        self._changed.wait_for(lambda: self.is_closed or bool(self._idle) or len(self._lent) < self._capacity())
        if self.is_closed:
            raise CoordinatorError("Expected an open pool of merged files, found that its checkpoint or manager ended.")
        return super().acquire()


def _takes_more(file: PhysicalFile) -> bool:
    return not (file.is_closed or file.body.is_sealed) and file.is_reusable
