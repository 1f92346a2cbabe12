"""Physical files, and the segments in them."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_provider_statecheck.checkpoint.states.handles import CheckpointedStateScope, SegmentFileStateHandle
from airflow_provider_statecheck.storage.merging.bodies import FileBody
from airflow_provider_statecheck.storage.merging.keys import SubtaskKey


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
