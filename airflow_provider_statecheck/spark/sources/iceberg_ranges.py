"""
Planning of the files of an Iceberg table by snapshot ranges.

A fresh start reads all files of one snapshot, or the files appended since a starting snapshot. A restarted run reads
the same ranges again; a new run adds the range of snapshots since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.exceptions import (
    InvalidConfigurationError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.spark.sources.enumerator import SourceState
from airflow_provider_statecheck.spark.sources.source import OnChange, change_error
from airflow_provider_statecheck.state.source_items import Item, decoding
from airflow_provider_statecheck.storage.uris import redact

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class SnapshotRange:
    """Files appended after one snapshot up to another one; all files of the latter if there is no first one."""

    after: int | None
    until: int | None
    """``None`` for a table without snapshots."""


@dataclass(frozen=True, slots=True)
class PlannedFiles:
    """The files of snapshot ranges."""

    ranges: tuple[SnapshotRange, ...]
    tasks: Mapping[str, Any]
    """PyIceberg scan tasks by the paths of their data files."""

    @property
    def items(self) -> tuple[Item, ...]:
        """The files as items; the record count is enough as a version, because data files never change."""
        return tuple(
            Item.of(path, task.file.file_size_in_bytes, task.file.record_count) for path, task in self.tasks.items()
        )

    @property
    def until(self) -> int | None:
        """The last snapshot of the ranges."""
        return self.ranges[-1].until

    def encode(self) -> list[list[int | None]]:
        """Return the ranges as plain values."""
        return [[snapshots.after, snapshots.until] for snapshots in self.ranges]


def decode_ranges(reader: Mapping[str, Any] | None) -> tuple[SnapshotRange, ...]:
    """
    Decode the ranges from the state of a reader.

    :raises CorruptStateError: if the state is invalid.
    """
    with decoding("the snapshots that a source has read"):
        (first, *others) = (SnapshotRange(after, until) for after, until in (reader or {})["snapshots"])
        return (first, *others)


class IcebergRanges:
    """
    Plans the files of a run.

    :param table: The loaded PyIceberg table.
    :param name: Name of the table in messages.
    :param on_change: Policy for snapshots that changed or deleted rows.
    """

    def __init__(self, table: Any, name: str, on_change: OnChange) -> None:
        self.table = table
        self._name = name
        self._on_change = on_change

    def at_start(self, after: int | None) -> PlannedFiles:
        """
        Plan a fresh start.

        :param after: Starting snapshot; ``None`` to read the whole table.
        :raises InvalidConfigurationError: if the starting snapshot is not in the history of the table.
        :raises SourceChangedError: if rows were changed since the starting snapshot.
        """
        if after is None:
            return self._plan((SnapshotRange(None, self._head),))
        if after not in {snapshot.snapshot_id for snapshot in self._ancestors()}:
            raise InvalidConfigurationError(
                f"Expected a starting snapshot in the retained history of the Iceberg table {self._name}, found {after}; set "
                "another one, or none to read everything."
            )
        self._require_appends_after(after)
        return self._plan((SnapshotRange(after, self._head),))

    def of_restarted_run(self, before: SourceState) -> PlannedFiles:
        """
        Plan the files of a run that was started before, regardless of later commits.

        :raises SourceChangedError: if a snapshot with unread files has expired.
        :raises SourceRestartRequiredError: if so and the policy is ``RESTART``.
        """
        ranges = decode_ranges(before.reader)
        if self._is_finished(before) and not all(self._is_retained(snapshots) for snapshots in ranges):
            return PlannedFiles(ranges, {})
        return self._require_unfinished_files(before, self._plan(ranges))

    def of_new_run(self, before: SourceState) -> PlannedFiles:
        """
        Plan a new run: the unread files of the previous run, and the files appended since.

        :raises SourceChangedError: if rows were changed, or snapshots with unread files have expired.
        :raises SourceRestartRequiredError: if so and the policy is ``RESTART``.
        """
        ranges = decode_ranges(before.reader)
        left = () if self._is_finished(before) else ranges
        after = ranges[-1].until
        if after is not None:
            self._require_ancestor(after)
            self._require_appends_after(after)
        return self._require_unfinished_files(before, self._plan((*left, SnapshotRange(after, self._head))))

    @property
    def _head(self) -> int | None:
        snapshot = self.table.current_snapshot()
        return None if snapshot is None else int(snapshot.snapshot_id)

    def _is_finished(self, before: SourceState) -> bool:
        return not before.ledger.unfinished

    def _plan(self, ranges: tuple[SnapshotRange, ...]) -> PlannedFiles:
        missing = [snapshots for snapshots in ranges if not self._is_retained(snapshots)]
        if missing:
            self._refuse(f"snapshot {missing[0].until} has expired, with files that are still to be read", is_lost=True)
        tasks = {task.file.file_path: task for snapshots in ranges for task in self._tasks(snapshots)}
        return PlannedFiles(ranges, tasks)

    def _require_unfinished_files(self, before: SourceState, planned: PlannedFiles) -> PlannedFiles:
        # Snapshots inside a range may have expired, and with them the information which files they added.
        lost = [item.name for item in before.ledger.unfinished if item.name not in planned.tasks]
        if lost:
            self._refuse(
                f"snapshots have expired of which {len(lost)} file(s) are still to be read, such as {redact(lost[0])}",
                is_lost=True,
            )
        return planned

    def _tasks(self, snapshots: SnapshotRange) -> list[Any]:
        if snapshots.until is None:
            return []
        if snapshots.after is None:
            return sorted(self._scanned(snapshots.until), key=lambda task: str(task.file.file_path))
        return list(self._appended(snapshots.after, snapshots.until))

    def _scanned(self, snapshot_id: int) -> list[Any]:
        from pyiceberg.manifest import FileFormat

        try:
            found = list(self.table.scan(snapshot_id=snapshot_id).plan_files())
        except ValueError as error:
            raise self._unreadable(str(error)) from error
        if any(
            file.file_format is not FileFormat.PARQUET for task in found for file in (task.file, *task.delete_files)
        ):
            raise self._unreadable("files or deletion vectors that are not Parquet")
        return found

    def _unreadable(self, found: str) -> UnsupportedStateError:
        return UnsupportedStateError(
            f"Expected the rows of the Iceberg table {self._name} in Parquet files with position deletes at most, found: {found}. "
            "Rewrite its data files to apply the deletes, and run again."
        )

    def _appended(self, after: int, until: int) -> Iterator[Any]:
        from pyiceberg.table import FileScanTask
        from pyiceberg.table.snapshots import Operation

        # Oldest snapshots first, and the files of each snapshot by path.
        for snapshot in reversed(list(self._between(after, until))):
            if snapshot.summary.operation is Operation.APPEND:
                files = sorted(self._added_by(snapshot), key=lambda file: str(file.file_path))
                yield from (FileScanTask(file) for file in files)

    def _added_by(self, snapshot: Any) -> Iterator[Any]:
        from pyiceberg.manifest import ManifestContent, ManifestEntryStatus

        for manifest in snapshot.manifests(self.table.io):
            if manifest.content == ManifestContent.DATA and manifest.added_snapshot_id == snapshot.snapshot_id:
                for entry in manifest.fetch_manifest_entry(self.table.io):
                    if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id:
                        yield entry.data_file

    def _require_ancestor(self, snapshot_id: int) -> None:
        known = {parent for s in self._ancestors() for parent in (s.snapshot_id, s.parent_snapshot_id)}
        if snapshot_id not in known:
            self._refuse(
                f"its history no longer includes snapshot {snapshot_id}, the last one that was read", is_lost=True
            )

    def _require_appends_after(self, after: int) -> None:
        from pyiceberg.table.snapshots import Operation

        harmless = (Operation.APPEND, Operation.REPLACE)
        found = [s for s in self._between(after, self._head) if s.summary.operation not in harmless]
        if found:
            shown = ", ".join(f"{s.snapshot_id} ({s.summary.operation.value})" for s in found[-_SHOWN:])
            self._refuse(f"rows were changed or deleted by {len(found)} snapshot(s): {shown}", is_lost=False)

    def _refuse(self, found: str, *, is_lost: bool) -> None:
        if not is_lost and self._on_change is OnChange.IGNORE:
            return
        alternative = "" if is_lost else "to 'ignore' to continue with the appended rows, or "
        raise change_error(
            f"Expected only appends to the Iceberg table {self._name} since it was read, found that {found}",
            f"Set on_change {alternative}to 'restart' to read everything again.",
            self._on_change,
        )

    def _is_retained(self, snapshots: SnapshotRange) -> bool:
        return snapshots.until is None or self.table.metadata.snapshot_by_id(snapshots.until) is not None

    def _ancestors(self) -> Iterable[Any]:
        return self._between(None, self._head)

    def _between(self, after: int | None, until: int | None) -> Iterator[Any]:
        from pyiceberg.table.snapshots import ancestors_of

        metadata = self.table.metadata
        for snapshot in ancestors_of(metadata.snapshot_by_id(until) if until is not None else None, metadata):
            if snapshot.snapshot_id == after:
                return
            yield snapshot
