"""Which files of an Iceberg table a run reads: those of one snapshot, or what was appended between two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    InvalidConfigurationError,
    SourceChangedError,
    SourceRestartRequiredError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.spark.sources.enumerator import SourceState
from airflow_provider_statecheck.spark.sources.source_changes import OnChange
from airflow_provider_statecheck.spark.sources.splits import Item
from airflow_provider_statecheck.storage.uris import redact

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class SnapshotRange:
    """What a table got after one snapshot until another; everything that is in the latter, if there is no first one."""

    after: int | None
    until: int | None
    """``None`` for a table without snapshots."""


@dataclass(frozen=True, slots=True)
class PlannedFiles:
    """The files of ranges."""

    ranges: tuple[SnapshotRange, ...]
    tasks: Mapping[str, Any]
    """What pyiceberg reads, by the paths of the data files."""

    @property
    def items(self) -> tuple[Item, ...]:
        """The files as a source lists them; a file of Iceberg never changes."""
        return tuple(
            Item.of(path, task.file.file_size_in_bytes, task.file.record_count) for path, task in self.tasks.items()
        )

    @property
    def until(self) -> int | None:
        """The snapshot up to which they go."""
        return self.ranges[-1].until

    def encode(self) -> list[list[int | None]]:
        """Return the ranges as plain values."""
        return [[each.after, each.until] for each in self.ranges]


def decode_ranges(reader: Mapping[str, Any] | None) -> tuple[SnapshotRange, ...]:
    """
    Return the ranges that a source left in a checkpoint.

    :raises CorruptStateError: if it left something else.
    """
    try:
        found = tuple(SnapshotRange(after, until) for after, until in (reader or {})["snapshots"])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptStateError(f"Expected the snapshots that a source has read, found {reader!r:.100}.") from error
    if not found:
        raise CorruptStateError("Expected the snapshots that a source has read, found none.")
    return found


class IcebergRanges:
    """
    Plans what runs read.

    :param table: As it was loaded.
    :param name: As it is shown.
    :param on_change: What to do if rows were changed or deleted.
    """

    def __init__(self, table: Any, name: str, on_change: OnChange) -> None:
        self.table = table
        self._name = name
        self._on_change = on_change

    def at_start(self, after: int | None) -> PlannedFiles:
        """
        Return what a fresh start reads.

        :param after: A snapshot, if only what was appended after it is wanted.
        :raises InvalidConfigurationError: if the table has no such snapshot.
        :raises SourceChangedError: if rows were changed since that snapshot.
        """
        if after is None:
            return self._planned((SnapshotRange(None, self._head),))
        if after not in {snapshot.snapshot_id for snapshot in self._ancestors()}:
            raise InvalidConfigurationError(
                f"Expected a starting snapshot that the Iceberg table {self._name} has passed through and still knows, found "
                f"{after}; name another one, or none to read everything."
            )
        self._require_appends_after(after)
        return self._planned((SnapshotRange(after, self._head),))

    def of_run(self, before: SourceState) -> PlannedFiles:
        """
        Return what a run reads that was begun before: the same files, whatever was committed since.

        :raises SourceChangedError: if the table has forgotten a snapshot of which something is left to read.
        :raises SourceRestartRequiredError: if it has and the stage is to begin again.
        """
        ranges = decode_ranges(before.reader)
        if self._is_finished(before) and not all(self._knows(each) for each in ranges):
            return PlannedFiles(ranges, {})
        return self._with_the_rest(before, self._planned(ranges))

    def of_new_run(self, before: SourceState) -> PlannedFiles:
        """
        Return what a new run reads: what was left by the one before, and what was appended since.

        :raises SourceChangedError: if rows were changed, or it is no longer known what was appended.
        :raises SourceRestartRequiredError: if they were and the stage is to begin again.
        """
        ranges = decode_ranges(before.reader)
        left = () if self._is_finished(before) else ranges
        after = ranges[-1].until
        if after is not None:
            self._require_passed(after)
            self._require_appends_after(after)
        return self._with_the_rest(before, self._planned((*left, SnapshotRange(after, self._head))))

    @property
    def _head(self) -> int | None:
        snapshot = self.table.current_snapshot()
        return None if snapshot is None else int(snapshot.snapshot_id)

    def _is_finished(self, before: SourceState) -> bool:
        return len(before.ledger.finished) == len(before.ledger.items)

    def _planned(self, ranges: tuple[SnapshotRange, ...]) -> PlannedFiles:
        missing = [each for each in ranges if not self._knows(each)]
        if missing:
            self._refuse(
                f"it has forgotten snapshot {missing[0].until}, of which files are still to be read", is_lost=True
            )
        tasks = {task.file.file_path: task for each in ranges for task in self._tasks(each)}
        return PlannedFiles(ranges, tasks)

    def _with_the_rest(self, before: SourceState, planned: PlannedFiles) -> PlannedFiles:
        # A snapshot may be forgotten that is neither the first nor the last of its range, and with it which files it added.
        left = (item for i, item in enumerate(before.ledger.items) if i not in before.ledger.finished)
        lost = [item.name for item in left if item.name not in planned.tasks]
        if lost:
            self._refuse(
                f"it has forgotten snapshots of which {len(lost)} file(s) are still to be read, such as {redact(lost[0])}",
                is_lost=True,
            )
        return planned

    def _tasks(self, each: SnapshotRange) -> list[Any]:
        if each.until is None:
            return []
        if each.after is None:
            return sorted(self._scanned(each.until), key=lambda task: str(task.file.file_path))
        return list(self._appended(each.after, each.until))

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
            f"Expected the Iceberg table {self._name} with all its rows in Parquet files, some of them deleted by position at "
            f"most, found: {found}. Rewrite its data files, by which what is deleted is taken out, and run again."
        )

    def _appended(self, after: int, until: int) -> Iterator[Any]:
        from pyiceberg.table import FileScanTask
        from pyiceberg.table.snapshots import Operation

        # The oldest first, and the files of each in the order of their names.
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

    def _require_passed(self, snapshot_id: int) -> None:
        known = {parent for s in self._ancestors() for parent in (s.snapshot_id, s.parent_snapshot_id)}
        if snapshot_id not in known:
            self._refuse(f"it no longer goes back to snapshot {snapshot_id}, up to which it was read", is_lost=True)

    def _require_appends_after(self, after: int) -> None:
        from pyiceberg.table.snapshots import Operation

        harmless = (Operation.APPEND, Operation.REPLACE)
        found = [s for s in self._between(after, self._head) if s.summary.operation not in harmless]
        if found:
            told = ", ".join(f"{s.snapshot_id} ({s.summary.operation.value})" for s in found[-_SHOWN:])
            self._refuse(f"rows were changed or deleted by {len(found)} snapshot(s): {told}", is_lost=False)

    def _refuse(self, found: str, *, is_lost: bool) -> None:
        if self._on_change is OnChange.RESTART:
            raise SourceRestartRequiredError(
                f"Expected only appends to the Iceberg table {self._name} since it was read, found that {found}; the stage begins "
                "again, as on_change='restart' says."
            )
        if is_lost or self._on_change is OnChange.FAIL:
            way = "" if is_lost else "to 'ignore' to go on with what was appended, or "
            raise SourceChangedError(
                f"Expected only appends to the Iceberg table {self._name} since it was read, found that {found}. Set on_change "
                f"{way}to 'restart' to read everything again."
            )

    def _knows(self, each: SnapshotRange) -> bool:
        return each.until is None or self.table.metadata.snapshot_by_id(each.until) is not None

    def _ancestors(self) -> Iterable[Any]:
        return self._between(None, self._head)

    def _between(self, after: int | None, until: int | None) -> Iterator[Any]:
        from pyiceberg.table.snapshots import ancestors_of

        metadata = self.table.metadata
        for snapshot in ancestors_of(metadata.snapshot_by_id(until) if until is not None else None, metadata):
            if snapshot.snapshot_id == after:
                return
            yield snapshot
