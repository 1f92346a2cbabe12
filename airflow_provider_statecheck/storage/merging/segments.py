"""Which segments there are, which checkpoint uploaded them, and which of them nobody needs any more."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from airflow_provider_statecheck.storage.merging.files import LogicalFile, PhysicalFile
from airflow_provider_statecheck.storage.merging.keys import SubtaskKey


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
