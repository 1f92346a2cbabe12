"""
Iceberg table as the destination of a two-phase commit, with its ledger on a branch.

One commit of the catalog moves the main branch and the branch of the ledger, and requires the previous state of both.
Therefore only an attempt that has read the newest ledger can commit.

The ledger is a property of an empty snapshot. It contains the commit log, and the snapshots that added the files of the
committed checkpoints.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.exceptions import (
    CommitStateUnknownError,
    CorruptStateError,
    StateCheckError,
    StorageError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.exactly_once.commit_log import (
    CommitLog,
    CommitRange,
    LogChange,
    Publication,
    Start,
)
from airflow_provider_statecheck.spark.connectors.exactly_once.committer import CommitDestination, other_output_error
from airflow_provider_statecheck.spark.connectors.exactly_once.target_files import missing_file_cause
from airflow_provider_statecheck.spark.connectors.iceberg.table import (
    OpenTable,
    decode_data_file,
    delete_files,
    files_of_success,
    is_local_location,
)
from airflow_provider_statecheck.spark.connectors.iceberg.writer import (
    RowChange,
    is_file_of,
    require_marks,
    rows_of_files,
)
from airflow_provider_statecheck.spark.connectors.sink import SinkContext
from airflow_provider_statecheck.storage.failures import disk_failure

LEDGER_PROPERTY = "statecheck.ledger"
"""Summary property of the snapshot on the branch of a lineage."""
_FORMAT_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLedger:
    """An immutable version of the ledger, replaced in the same commit as the files that it records."""

    job_name: str
    uid: str
    log: CommitLog = field(default_factory=CommitLog)
    commits: tuple[TableCommit, ...] = ()
    """Commits of the checkpoints in the committed ranges of the log, in commit order."""

    def find(self, epoch: int, checkpoint_id: int) -> TableCommit | None:
        """Return the commit of a checkpoint, ``None`` if there is none."""
        return next((each for each in self.commits if (each.epoch, each.checkpoint_id) == (epoch, checkpoint_id)), None)

    def within(self, ranges: Sequence[CommitRange]) -> list[TableCommit]:
        """Return the commits of the checkpoints in ranges."""
        return [each for each in self.commits if any(each.is_within(part) for part in ranges)]

    def adding(self, commit: TableCommit | None) -> Self:
        """Return the ledger with one more commit, and without those that the log no longer contains."""
        kept = [each for each in self.commits if self.log.holds(each.epoch, each.checkpoint_id)]
        return replace(self, commits=(*kept, *([commit] if commit else [])))

    def encode(self) -> str:
        """Return the ledger as JSON."""
        document = {
            "format_version": _FORMAT_VERSION,
            "job": self.job_name,
            "uid": self.uid,
            "log": self.log.encode(),
            "snapshots": self.commits,
        }
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str, where: str) -> Self:
        """
        Return the ledger that :meth:`encode` encoded.

        :param where: Location of the ledger for error messages.
        :raises CorruptStateError: if the text is damaged, or has another format.
        """
        try:
            document = json.loads(text)
            if document["format_version"] != _FORMAT_VERSION:
                raise ValueError(document["format_version"])  # noqa: TRY301 - reported below with other invalid documents
            return cls(
                job_name=str(document["job"]),
                uid=str(document["uid"]),
                log=CommitLog.decode(document["log"], where),
                commits=tuple(TableCommit(*(int(number) for number in each)) for each in document["snapshots"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptStateError(
                f"Expected the commits of a sink in format {_FORMAT_VERSION} in {where}, found {text[:60]!r}; use the "
                "version of airflow-provider-statecheck that wrote it, or delete the output of the sink, drop the "
                "branch, and start over."
            ) from error


class TableCommit(NamedTuple):
    """A checkpoint whose output is in the table."""

    generation: int
    checkpoint_id: int
    epoch: int
    """Attempt that took the checkpoint; a later attempt may commit it."""
    snapshot_id: int
    """Snapshot that added the output; manifest entries of added files contain it."""
    files: int
    """Number of files in the table; 0 for upserted rows."""
    rows: int

    @classmethod
    def of(cls, publication: Publication) -> Self:
        """Return the commit of the output of a checkpoint, without its snapshot."""
        files = publication.files
        return cls(
            generation=publication.generation,
            checkpoint_id=publication.checkpoint_id,
            epoch=publication.epoch,
            snapshot_id=0,
            files=len(files),
            rows=sum(int(file["rows"]) for file in files),
        )

    def is_within(self, part: CommitRange) -> bool:
        """Return whether the checkpoint is within a range."""
        return self.epoch == part.epoch and part.first <= self.checkpoint_id <= part.last

    def is_same(self, again: Self) -> bool:
        """Return whether a repeated commit of the checkpoint has the same output, as far as the ledger shows."""
        return self.rows == again.rows and self.files in (0, again.files)


def branch_of(lineage: str) -> str:
    """Return the name of the branch with the ledger of a lineage."""
    return f"statecheck-{lineage}"


def read_ledger(table: Any, lineage: str) -> TableLedger | None:
    """
    Return the ledger of a lineage, ``None`` if it never opened the table.

    :raises CorruptStateError: if the ledger is damaged.
    """
    snapshot = table.metadata.snapshot_by_name(branch_of(lineage))
    if snapshot is None:
        return None
    text = snapshot.summary and snapshot.summary.get(LEDGER_PROPERTY)
    return TableLedger.decode(text or "", f"the branch {branch_of(lineage)}")


def files_of(table: Any, lineage: str, commits: Sequence[TableCommit], shown: str) -> list[Any]:
    """
    Return the data files that commits of a lineage have added.

    :raises CorruptStateError: if files are missing because another writer has rewritten or deleted them.
    """
    wanted = {commit.snapshot_id for commit in commits}
    # The name is checked too, so that a bug in the sink cannot remove files of other writers.
    found = [file for snapshot_id, file in _data_entries(table) if snapshot_id in wanted and is_file_of(file, lineage)]
    expected = sum(commit.files for commit in commits)
    if len(found) != expected:
        raise CorruptStateError(
            f"Expected {counted(expected, 'file')} of {counted(len(commits), 'checkpoint')} in the Iceberg table "
            f"{shown} to remove, found {len(found)}: another writer, such as compaction, has rewritten or deleted "
            f"them. Delete the rows of this stage from the table, drop the branch {branch_of(lineage)} and start over.",
            checkpoint_id=commits[0].checkpoint_id,
        )
    return found


def _data_entries(table: Any) -> Iterator[tuple[int | None, Any]]:
    from pyiceberg.manifest import ManifestContent

    snapshot = table.metadata.snapshot_by_name("main")
    for manifest in snapshot.manifests(table.io) if snapshot else ():
        if manifest.content == ManifestContent.DATA:
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                yield entry.snapshot_id, entry.data_file


_MAIN = "main"
_NEVER_MS = 2**63 - 1


@dataclass(slots=True, kw_only=True)
class IcebergDestination(CommitDestination):
    """
    Output and commit log of one sink in an Iceberg table.

    :param upsert_by: Key columns for upserts; empty for appends.
    :param marks_rows: Whether two columns record the sink and the checkpoint of each upserted row.
    """

    table: OpenTable
    context: SinkContext
    upsert_by: tuple[str, ...] = ()
    marks_rows: bool = False
    _loaded: Any = field(default=None, init=False, repr=False)
    """Version of the table that contains the ledger."""
    _ledger: TableLedger = field(init=False, repr=False)

    @property
    @override
    def name(self) -> str:
        return f"the Iceberg table {self.table.name}"

    @override
    def log_of(self, lineage: str) -> CommitLog:
        table = self.table.load()
        with self.table.redacted_failures():
            ledger = read_ledger(table, lineage)
        return ledger.log if ledger else CommitLog()

    @override
    def load(self, epoch: int) -> CommitLog:
        self._loaded = self.table.load()
        new = TableLedger(job_name=self.context.job_name, uid=self.context.uid)
        with self.table.redacted_failures():
            self._ledger = read_ledger(self._loaded, self.context.lineage) or new
            if self._ledger.log.newest_epoch < epoch:
                self._require_restored_output(epoch)
        return self._ledger.log

    @override
    def require_retractable(self, ranges: Sequence[CommitRange]) -> None:
        commits = self._ledger.within(ranges)
        with self.table.redacted_failures():
            self._files_of(commits)
            if _has_upserts(commits):
                require_marks(self._loaded, self.table.name)

    @override
    def require_same(self, committed: Publication) -> None:
        known, again = self._ledger.find(committed.epoch, committed.checkpoint_id), TableCommit.of(committed)
        if known is None or not known.is_same(again):
            found = f"{counted(again.rows, 'row')} and {known.rows if known else 'no'} committed rows"
            raise other_output_error(committed, self.name, found)

    @override
    def apply(self, epoch: int, change: LogChange) -> StateCheckError | None:
        # The catalog refuses a commit of unknown outcome if it arrives later than another one.
        with self.table.redacted_failures():
            try:
                with files_of_success(self._loaded) as table:
                    edit = self._edit(table, change)
                    staged = stage_edit(table, self.context.lineage, edit)
            except FileNotFoundError as error:
                # Another writer may have expired the snapshot that the edit is based on.
                if self.table.load().metadata_location == self._loaded.metadata_location:
                    raise
                return self.table.storage_error(error)
        failure = self._commit(staged)
        if failure is None:
            delete_files(self._loaded, (file.file_path for file in edit.merged))
        return failure

    @override
    def sweep(self, epoch: int, last_epoch: int) -> None:
        """Do nothing: ``remove_orphan_files`` of Iceberg removes files that no snapshot references."""

    def _commit(self, staged: StagedEdit) -> StateCheckError | None:
        from pyiceberg.exceptions import CommitFailedException

        try:
            commit_edit(self._loaded, staged)
        except CommitFailedException as error:
            return StorageError(
                f"Expected to commit to {self.name}, found a concurrent commit: {error}; retry the task."
            )
        except Exception as error:
            failure = CommitStateUnknownError(
                f"Expected a reply to a commit, found none: {self.table.storage_error(error)} The state of the commit "
                "is unknown; retry the task, which checks the table."
            )
            if disk_failure(error):
                raise failure from None
            return failure
        return None

    def _edit(self, table: Any, change: LogChange) -> TableEdit:
        published, replaced = change.publication, self._ledger.within(change.retracted)
        edit = TableEdit(
            ledger=replace(self._ledger, log=change.after),
            commit=TableCommit.of(published) if published else None,
            add=self._new_files(published) if published else [],
            remove=self._files_of(replaced),
        )
        rows = RowChange(
            table=table,
            lineage=self.context.lineage,
            retracted=change.retracted if _has_upserts(replaced) else (),
        )
        if edit.commit and self.upsert_by:
            return self._upserting(edit, edit.commit, rows)
        self._require_same_spec(edit.add)
        return self._changing_rows(edit, rows) if rows.retracted else edit

    def _upserting(self, edit: TableEdit, commit: TableCommit, rows: RowChange) -> TableEdit:
        found = rows_of_files(self._loaded, edit.add, self.upsert_by)
        merged = replace(edit, commit=commit._replace(files=0), add=[], merged=edit.add)
        change = replace(rows, keys=self.upsert_by, rows=found, checkpoint_id=commit.checkpoint_id)
        return self._changing_rows(merged, change)

    def _changing_rows(self, edit: TableEdit, rows: RowChange) -> TableEdit:
        if self.marks_rows or rows.retracted:
            require_marks(self._loaded, self.table.name)
        add, remove = rows.carry_out(ignored=edit.remove)
        return replace(edit, add=[*edit.add, *add], remove=[*edit.remove, *remove])

    def _new_files(self, published: Publication) -> list[Any]:
        files = [decode_data_file(file) for file in published.files]
        # An object store is the same for the driver and the executors, a disk may not be.
        local = (file.file_path for file in files if is_local_location(file.file_path))
        removed = next((path for path in local if not self._loaded.io.new_input(path).exists()), None)
        if removed is not None:
            raise CorruptStateError(
                f"Expected the data file {removed} of checkpoint {published.checkpoint_id} for {self.name}, found "
                f"none; {missing_file_cause(is_local=True)}",
                uri=removed,
                checkpoint_id=published.checkpoint_id,
            )
        return files

    def _files_of(self, commits: Sequence[TableCommit]) -> list[Any]:
        return files_of(self._loaded, self.context.lineage, commits, self.table.name) if commits else []

    def _require_restored_output(self, epoch: int) -> None:
        start = Start(self.context.generation, self.context.restored_checkpoint_id, self.context.restored_epoch)
        if not self._ledger.log.has_written(start.taken_by or 0):
            return  # the restored output is in another table
        ancestry = self._ledger.log.begun(epoch, start).ancestry_of(epoch)
        restored = [each for each in self._ledger.commits if ancestry.holds(each.epoch, each.checkpoint_id)]
        if restored:
            self._require_not_rolled_back(restored[-1])

    def _require_not_rolled_back(self, commit: TableCommit) -> None:
        # An expired snapshot cannot be checked; the table retains its live files.
        from pyiceberg.table.snapshots import ancestors_of

        metadata = self._loaded.metadata
        wanted = metadata.snapshot_by_id(commit.snapshot_id)
        if wanted is None:
            return
        ancestors = ancestors_of(metadata.snapshot_by_name(_MAIN), metadata)
        # Expired snapshots leave gaps: only an ancestor that is not newer decides.
        older = next((each for each in ancestors if each.sequence_number <= wanted.sequence_number), wanted)
        if older.snapshot_id != commit.snapshot_id:
            raise CorruptStateError(
                f"Expected the output of checkpoint {commit.checkpoint_id} in {self.name}, found the table rolled back "
                f"to before snapshot {commit.snapshot_id}; roll it forward, or start over.",
                checkpoint_id=commit.checkpoint_id,
            )

    def _require_same_spec(self, files: Sequence[Any]) -> None:
        current = self._loaded.metadata.default_spec_id
        specs = {file.spec_id for file in files} - {current}
        if specs:
            raise UnsupportedStateError(
                f"Expected the partitions of {self.name} unchanged while output waits for its commit, found spec "
                f"{current} instead of {min(specs)}; restore that spec until the stage has ended."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEdit:
    """Changes of one commit of a table."""

    ledger: TableLedger
    """Ledger with the log after the commit, and with the table commits before it."""
    commit: TableCommit | None
    """Commit of the added files, still without its snapshot."""
    add: Sequence[Any]
    """Data files to add."""
    remove: Sequence[Any]
    """Data files to remove."""
    merged: Sequence[Any] = ()
    """Files of tasks whose rows were merged, which nothing needs after the commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedEdit:
    """An edit with its metadata files written, ready for the catalog."""

    updates: tuple[Any, ...]
    requirements: tuple[Any, ...]
    """Requirements on the state of the table."""
    replaced: Any
    """Previous snapshot of the ledger, ``None`` for the first one."""


def stage_edit(table: Any, lineage: str, edit: TableEdit) -> StagedEdit:
    """
    Write the metadata files of an edit without committing them.

    :param table: Table as it was read together with the ledger.
    """
    from pyiceberg.table import Transaction

    # The transaction only collects updates. Its own commit would retry after a conflict without reading the new ledger.
    transaction = Transaction(table)
    moves_main = bool(edit.add or edit.remove or not table.metadata.snapshots)
    ledger = _stage_files(transaction, edit) if moves_main else edit.ledger.adding(None)
    _stage_ledger(transaction, lineage, ledger)
    replaced = table.metadata.snapshot_by_name(branch_of(lineage))
    return StagedEdit(
        updates=(*(_with_retention(update, lineage) for update in transaction._updates), *_removal_of(replaced)),
        requirements=_requirements(table, lineage),
        replaced=replaced,
    )


def commit_edit(table: Any, staged: StagedEdit) -> None:
    """
    Commit an edit atomically.

    :param table: Table as it was read together with the ledger.
    :raises CommitFailedException: if another writer has committed since; raised by pyiceberg.
    :raises Exception: if the outcome of the commit is unknown.
    """
    table._do_commit(staged.updates, staged.requirements)
    if staged.replaced is not None:
        with suppress(Exception):  # an orphan file of the removed snapshot
            table.io.delete(staged.replaced.manifest_list)


def _has_upserts(commits: Iterable[TableCommit]) -> bool:
    return any(not each.files for each in commits)


def _stage_files(transaction: Any, edit: TableEdit) -> TableLedger:
    update = transaction.update_snapshot(snapshot_properties=_summary(edit))
    producer = update.overwrite() if edit.remove else update.fast_append()
    for file in edit.add:
        producer.append_data_file(file)
    for file in edit.remove:
        producer.delete_data_file(file)
    producer.commit()
    return edit.ledger.adding(edit.commit and edit.commit._replace(snapshot_id=producer.snapshot_id))


def _stage_ledger(transaction: Any, lineage: str, ledger: TableLedger) -> None:
    properties = {LEDGER_PROPERTY: ledger.encode()}
    producer = transaction.update_snapshot(snapshot_properties=properties, branch=branch_of(lineage)).fast_append()
    producer._parent_snapshot_id = None  # the same commit removes the previous ledger snapshot
    producer.commit()


def _with_retention(update: Any, lineage: str) -> Any:
    # The table may expire branches by age; the branch of the ledger must be retained.
    is_ours = getattr(update, "ref_name", None) == branch_of(lineage)
    return update.model_copy(update={"max_ref_age_ms": _NEVER_MS}) if is_ours else update


def _summary(edit: TableEdit) -> dict[str, str]:
    summary = {"statecheck.job": edit.ledger.job_name, "statecheck.uid": edit.ledger.uid}
    if edit.commit:
        summary["statecheck.checkpoint"] = str(edit.commit.checkpoint_id)
        summary["statecheck.generation"] = str(edit.commit.generation)
        summary["statecheck.epoch"] = str(edit.commit.epoch)
    return summary


def _requirements(table: Any, lineage: str) -> tuple[Any, ...]:
    from pyiceberg.table.update import AssertTableUUID

    # A table without snapshots only accepts a requirement for main, which every first ledger commit also moves.
    # Main is required even if it does not move: the sequence number of the ledger snapshot must stay the highest one.
    branches = [_MAIN, *([branch_of(lineage)] if table.metadata.snapshots else [])]
    same_table = AssertTableUUID(uuid=table.metadata.table_uuid)
    return same_table, *(_ref_requirement(table, branch) for branch in branches)


def _ref_requirement(table: Any, branch: str) -> Any:
    from pyiceberg.table.update import AssertRefSnapshotId

    snapshot = table.metadata.snapshot_by_name(branch)
    return AssertRefSnapshotId.model_validate(
        {"ref": branch, "snapshot-id": snapshot.snapshot_id if snapshot else None}
    )


def _removal_of(snapshot: Any) -> tuple[Any, ...]:
    from pyiceberg.table.update import RemoveSnapshotsUpdate

    return (RemoveSnapshotsUpdate.model_validate({"snapshot-ids": [snapshot.snapshot_id]}),) if snapshot else ()
