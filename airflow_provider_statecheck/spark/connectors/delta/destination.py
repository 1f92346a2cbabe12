"""
Delta table as the destination of a two-phase commit.

::

    <table>/_statecheck/<lineage>/logs/<version>.json              a version of the commit log
    <table>/_statecheck/<lineage>/commits/<generation>-<id>.json   the output of one checkpoint

Each table version of the sink changes the output, and sets the application transaction of the lineage to the version of
the commit log that describes the output. These files are written before. The table alone decides which log is in force,
and a writer that has read an older version of the table cannot change it.
"""

from __future__ import annotations

import logging
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CorruptStateError,
    EnvironmentNotReadyError,
    StateCheckError,
    StorageError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.delta.restrictions import restrictions_of
from airflow_provider_statecheck.spark.connectors.delta.table import DeltaCommit, DeltaSnapshot, DeltaTableAccess
from airflow_provider_statecheck.spark.connectors.delta.table_files import (
    file_schema,
    new_columns,
    stored_schema,
    zoneless_maps,
)
from airflow_provider_statecheck.spark.connectors.exactly_once.commit_files import CommitFiles
from airflow_provider_statecheck.spark.connectors.exactly_once.commit_log import (
    ALL_CHECKPOINTS,
    CommitLog,
    CommitRange,
    LogChange,
    Publication,
    Start,
)
from airflow_provider_statecheck.spark.connectors.exactly_once.committer import CommitDestination, require_newest
from airflow_provider_statecheck.spark.connectors.exactly_once.target_files import TargetFiles, lineage_directory
from airflow_provider_statecheck.spark.connectors.sink import SinkContext, decode_schema
from airflow_provider_statecheck.spark.tables.data_files import require_partitionable
from airflow_provider_statecheck.spark.tables.schemas import all_nullable, required_part_differences, schema_differences

log = logging.getLogger(__name__)
_TRY_BITS = 20
_LOG = re.compile(r"(\d+)\.json")


@dataclass(slots=True, kw_only=True)
class DeltaDestination(CommitDestination):
    """
    A table whose application transaction selects the commit log of one sink; subclasses write the output.

    :param partition_by: Partition columns of the table.
    :param merges_schema: Whether columns may be added to the table.
    """

    table: DeltaTableAccess
    files: TargetFiles
    records: CommitFiles
    context: SinkContext
    partition_by: tuple[str, ...]
    merges_schema: bool
    _snapshot: DeltaSnapshot | None = field(default=None, init=False)
    """Version of the table that :meth:`load` has read, and that :meth:`apply` follows."""
    _table_id: str | None = field(default=None, init=False)
    _unwritten: Start | None = field(default=None, init=False)
    """Start of the attempt while the table does not exist."""
    _last_try: int = field(default=0, init=False)

    def _columns(self, schema: Any) -> Any:
        """
        Return the Arrow schema that the table needs for an output schema.

        :raises UnsupportedStateError: if the table cannot store the output.
        """
        return file_schema(schema)

    @abstractmethod
    def _require_removable(self, snapshot: DeltaSnapshot, ranges: Sequence[CommitRange]) -> None:
        """
        Require output that :meth:`_write` can remove.

        :raises StateCheckError: if it cannot.
        """

    @abstractmethod
    def _write(self, snapshot: DeltaSnapshot, change: LogChange, commit: DeltaCommit) -> StorageError | None:
        """
        Write the version that follows a snapshot, with the output that a change adds and removes.

        :param commit: Application transaction and note of the version.
        :return: ``None`` if the version was written; an error if another writer wrote it first.
        :raises StateCheckError: if the output must not be written.
        """

    @abstractmethod
    def _sweep_files(self, current: CommitLog, last_epoch: int) -> None:
        """Delete files of attempts up to an epoch that no version of the table has shown."""

    @abstractmethod
    def _writers(self, snapshot: DeltaSnapshot, newest: int) -> Mapping[int, int]:
        """
        Return the generations by epoch of the attempts that may have output in a table whose log was lost.

        :param newest: Epoch of the newest attempt.
        """

    @property
    @override
    def name(self) -> str:
        return f"Delta table {self.table.shown}"

    @override
    def log_of(self, lineage: str) -> CommitLog:
        _, found = self._newest(lineage)
        if found is None:
            raise self._lost_log_error(lineage)
        return found

    @override
    def load(self, epoch: int) -> CommitLog:
        self._snapshot, found = self._newest(self.context.lineage)
        self._require_same_table(self._snapshot)
        if found is None:
            found = self._rebuilt_log(epoch)
        start = self._unwritten
        return found if start is None or epoch in found.starts else found.begun(epoch, start)

    @override
    def require_retractable(self, ranges: Sequence[CommitRange]) -> None:
        self.records.require_records(ranges, self.name)
        if self._snapshot is not None:
            self._require_removable(self._snapshot, ranges)

    @override
    def require_same(self, committed: Publication) -> None:
        self.records.require_same(committed, self.name)

    @override
    def apply(self, epoch: int, change: LogChange) -> StateCheckError | None:
        schema = self._schema_of(change)
        self._require_fitting(schema)
        if self._snapshot is None and schema is None:
            # The first commit creates the table; until then, this file tells other attempts of the opening.
            self._write_log(change.after)
            self._unwritten = change.after.starts[epoch]
            return None
        return self._create(schema) or self._add_columns(change, schema) or self._commit(change)

    @override
    def sweep(self, epoch: int, last_epoch: int) -> None:
        # Listed before the log is read: a newer attempt records output only after it has taken the table over.
        records = self.records.records()
        snapshot, current = self._newest(self.context.lineage)
        if current is None:
            return
        require_newest(current.newest_epoch, epoch, self.name)
        self._sweep_files(current, last_epoch)
        # Versions of the table before a retraction still show its files: their records protect them from the sweep.
        known = CommitLog(committed=(*current.committed, *current.retracted))
        self.records.prune(records, known, last_epoch)
        in_force = _log_version(snapshot, self.context.lineage)
        if in_force is not None:
            self._logs(self.context.lineage).prune(in_force, last_epoch)

    def _newest(self, lineage: str) -> tuple[DeltaSnapshot | None, CommitLog | None]:
        previous = None
        while True:
            snapshot = self.table.snapshot()
            version = _log_version(snapshot, lineage)
            if version is None:
                return snapshot, self._logs(lineage).openings()
            found = self._logs(lineage).read(version)
            # A concurrent commit deletes the log that was in force before.
            if found is not None or version == previous:
                return snapshot, found
            previous = version

    def _rebuilt_log(self, epoch: int) -> CommitLog:
        # A fresh start replaces all earlier output, for which the log would be needed only to tell checkpoints apart.
        lineage, snapshot = self.context.lineage, self._snapshot
        newest = epoch_of_log(_log_version(snapshot, lineage) or 0)
        require_newest(newest, epoch, self.name)
        writers = {} if snapshot is None else self._writers(snapshot, newest)
        if self.context.restored_checkpoint_id is not None or epoch in writers:
            raise self._lost_log_error(lineage)
        log.warning(
            "The log of the sink in %s was deleted; its first commit replaces all its earlier output", self.name
        )
        return CommitLog(
            starts=MappingProxyType({writer: Start(generation, None) for writer, generation in writers.items()}),
            committed=tuple(
                CommitRange(generation=generation, epoch=writer, first=1, last=ALL_CHECKPOINTS)
                for writer, generation in sorted(writers.items())
            ),
            forgotten=newest,
        )

    def _lost_log_error(self, lineage: str) -> CorruptStateError:
        return CorruptStateError(
            f"Expected the log of a sink below _statecheck/{lineage}/logs in the {self.name}, found none of the "
            "version that the table names; it was deleted, or an older version of airflow-provider-statecheck wrote "
            "the table. Restore the directory from a backup, or start over."
        )

    def _require_same_table(self, snapshot: DeltaSnapshot | None) -> None:
        found = None if snapshot is None else snapshot.table_id
        if self._table_id is not None and found != self._table_id:
            raise CorruptStateError(
                f"Expected the {self.name} that this attempt opened, found "
                f"{'none' if found is None else 'a table that was recreated'}; run the task again."
            )
        self._table_id = found

    def _schema_of(self, change: LogChange) -> Any:
        if change.publication is None:
            schema = None if change.retracted else self.context.schema
        else:
            schema = decode_schema(self._only_schema(change.publication))
        return None if schema is None else self._columns(schema)

    def _only_schema(self, publication: Publication) -> str:
        found = sorted({task.schema for task in publication.committables})
        if len(found) > 1:
            raise UnsupportedStateError(
                f"Expected all tasks of a checkpoint to write the same columns to the {self.name}, found "
                f"{' and '.join(str(decode_schema(text)) for text in found[:2])}; start the stage over."
            )
        return str(found[0])

    def _require_fitting(self, schema: Any) -> None:
        snapshot, partition_by = self._snapshot, self.partition_by
        if snapshot is not None:
            self._require_writable_table(snapshot)
        if schema is not None:
            require_partitionable(file_schema(schema), partition_by)
            self._require_readable(schema)
        if snapshot is None:
            return
        found = []
        if schema is not None:
            ours = stored_schema(schema)
            found = schema_differences(snapshot.schema, ours, may_add=self.merges_schema, may_lack=True)
            found += required_part_differences(snapshot.schema, ours)
        if snapshot.partition_by != partition_by:
            found.append(
                f"the table is partitioned by {', '.join(snapshot.partition_by) or 'nothing'} and the sink by "
                f"{', '.join(partition_by) or 'nothing'}"
            )
        if found:
            raise UnsupportedStateError(
                f"Expected output that fits the Delta table {self.table.shown}, found: {'; '.join(found)}. Convert it "
                "in the stage, set merge_schema=True if the table may get new nullable columns, or choose another "
                "table.",
                differences=found,
            )

    def _require_readable(self, schema: Any) -> None:
        snapshot, columns, features = self._snapshot, stored_schema(schema), ()
        if snapshot is not None:
            columns = pa.schema([columns.field(name) for name in new_columns(snapshot.schema, columns)])
            features = snapshot.handle.protocol().writer_features or ()
        found = zoneless_maps(columns, features)
        if found:
            raise UnsupportedStateError(
                "Expected times without a time zone in maps only in a Delta table with the feature timestampNtz, "
                f"found timestamp_ntz in maps of the columns {', '.join(map(repr, found))} for the {self.name}, which "
                "lacks the feature; cast the times in the stage to timestamps with a time zone, or create the table "
                "with the feature before.",
                columns=found,
            )

    def _require_writable_table(self, snapshot: DeltaSnapshot) -> None:
        # Plain data files would violate some features, and the log in force must not expire.
        found = restrictions_of(snapshot)
        if found:
            raise EnvironmentNotReadyError(
                f"Expected a Delta table at {self.table.shown} without restrictions on plain data files, found "
                f"{', '.join(sorted(set(found)))}; remove them from the table, or choose another one."
            )

    def _create(self, schema: Any) -> StorageError | None:
        if self._snapshot is not None:
            return None
        failure = self.table.create(
            all_nullable(schema), self.partition_by, DeltaCommit(note=self._note("creates the table"))
        )
        if failure is None:
            self._snapshot = self.table.snapshot(0)
        return failure

    def _add_columns(self, change: LogChange, schema: Any) -> StorageError | None:
        snapshot = self._opened()
        names = new_columns(snapshot.schema, schema) if change.publication is not None else []
        if not names:
            return None
        columns = all_nullable(pa.schema([schema.field(name) for name in names]))
        next_version = snapshot.version + 1
        failure = self.table.add_columns(snapshot, columns, DeltaCommit(note=self._note("adds columns")))
        if failure is None:
            self._snapshot = self.table.snapshot(next_version)
        return failure

    def _commit(self, change: LogChange) -> StorageError | None:
        snapshot, lineage = self._opened(), self.context.lineage
        before = _log_version(snapshot, lineage)
        if change.publication is not None:
            self.records.write_publication(change.publication)
        versions = {application(lineage): self._write_log(change.after)}
        commit = DeltaCommit(versions=versions, note=self._note(_event(change), change.publication))
        failure = self._write(snapshot, change, commit)
        if failure is None and before is not None:
            with suppress(StateCheckError):  # a later sweep deletes it
                self._logs(lineage).delete(before)
        return failure

    def _write_log(self, current: CommitLog) -> int:
        logs, epoch = self._logs(self.context.lineage), self.context.epoch
        if not self._last_try:
            own = [version for version in logs.versions() if epoch_of_log(version) == epoch]
            self._last_try = max(own, default=epoch << _TRY_BITS)
        self._last_try = 1 + max(self._last_try, _log_version(self._snapshot, self.context.lineage) or 0)
        logs.write(self._last_try, current)
        return self._last_try

    def _opened(self) -> DeltaSnapshot:
        if self._snapshot is None:
            raise CorruptStateError(f"Expected the {self.name} after its creation, found none; run the task again.")
        return self._snapshot

    def _logs(self, lineage: str) -> LogFiles:
        return LogFiles(TargetFiles(self.files.storage, lineage))

    def _note(self, event: str, publication: Publication | None = None) -> dict[str, Any]:
        owner = {"job": self.context.job_name, "uid": self.context.uid, "epoch": self.context.epoch}
        if publication is None:
            return {"attempt": event, **owner}
        commit = {"checkpoint": publication.checkpoint_id, "generation": publication.generation}
        return {"attempt": event, **owner, **commit}


@dataclass(frozen=True, slots=True)
class LogFiles:
    """
    Versions of the commit log of a lineage, one file each.

    A version consists of the epoch of the attempt and the number of its commit. Each call of a commit has a version of
    its own, so that a late one cannot put another log in force than the one that it has written.
    """

    files: TargetFiles

    def read(self, version: int) -> CommitLog | None:
        """
        Return a version of the log, ``None`` if its file is missing.

        :raises CorruptStateError: if the file is damaged.
        """
        name = self._name(version)
        try:
            text = self.files.read(name).decode(errors="replace")
        except CheckpointNotFoundError:
            return None
        return CommitLog.decode(text, f"{self.files.target}/{name}")

    def write(self, version: int, current: CommitLog) -> None:
        """
        Write a version of the log.

        :raises StorageError: if another driver of the same attempt has written it.
        """
        storage = self.files.storage
        storage.write_bytes(f"{storage.base_uri}/{self._name(version)}", current.encode().encode())

    def versions(self) -> list[int]:
        """Return the versions that have a file."""
        found = (_LOG.fullmatch(name) for name in self.files.list_files(self._directory))
        return [int(match[1]) for match in found if match]

    def openings(self) -> CommitLog:
        """Return the log of the attempts that have opened the sink while no version of the table names a log."""
        found = (self.read(version) for version in sorted(self.versions(), reverse=True))
        # A log with output is of a table that was recreated, or of a commit that failed.
        return next((each for each in found if each and not each.committed and not each.retracted), CommitLog())

    def delete(self, version: int) -> None:
        """Delete a version."""
        self.files.delete(self._name(version))

    def prune(self, in_force: int, last_epoch: int) -> None:
        """Delete the versions of attempts up to an epoch, except the one in force."""
        for version in self.versions():
            if version != in_force and epoch_of_log(version) <= last_epoch:
                self.delete(version)

    @property
    def _directory(self) -> str:
        return f"{lineage_directory(self.files.lineage)}/logs"

    def _name(self, version: int) -> str:
        return f"{self._directory}/{version}.json"


def epoch_of_log(version: int) -> int:
    """Return the epoch of the attempt that wrote a version of the log."""
    return version >> _TRY_BITS


def _log_version(snapshot: DeltaSnapshot | None, lineage: str) -> int | None:
    return None if snapshot is None else snapshot.version_of(application(lineage))


def _event(change: LogChange) -> str:
    if change.publication is not None:
        return "commits"
    return "retracts" if change.retracted else "begins"


def application(lineage: str) -> str:
    """Return the application id whose version is that of the commit log of a lineage."""
    return f"statecheck-{lineage}"
