"""Sink for an Iceberg table, with exactly-once commits per checkpoint."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from airflow_provider_statecheck.exceptions import (
    CommitStateUnknownError,
    CoordinatorError,
    CorruptStateError,
    InvalidConfigurationError,
    StateCheckError,
    StorageError,
)
from airflow_provider_statecheck.spark.sinks.iceberg import iceberg_ledger
from airflow_provider_statecheck.spark.sinks.iceberg.catalogs import OpenTable, TableAddress
from airflow_provider_statecheck.spark.sinks.iceberg.iceberg_ledger import Change, TableCommit, TableLedger, read_ledger
from airflow_provider_statecheck.spark.sinks.iceberg.iceberg_writer import (
    IcebergCommittable,
    IcebergSinkWriter,
    WriterTarget,
    decode_data_file,
    files_of,
)
from airflow_provider_statecheck.spark.sinks.iceberg.table_checks import (
    refuse_earlier_output,
    require_files_exist,
    require_fitting_columns,
    require_foreign_output_committed,
    require_opened,
    require_output_of_restored,
    require_partitionable,
    require_same_spec,
    require_writable_table,
    warn_if_unknown,
)
from airflow_provider_statecheck.spark.sinks.ledger import Start, refuse_output_of_removed_stages
from airflow_provider_statecheck.spark.sinks.sink import OnEarlierOutput, SinkContext, SinkTaskContext, require_one_of
from airflow_provider_statecheck.spark.sinks.target_files import lineage_of

log = logging.getLogger(__name__)
_TRIES = 12
_LONGEST_PAUSE_SECONDS = 10.0
_DEFAULT_BUFFER_BYTES = 128 * 1024 * 1024
Decision = Callable[[Any, TableLedger], Change | None]
"""Function that returns the change of a table with its ledger, or ``None`` if no change is left."""


class IcebergSink:
    """
    Adds the output of each checkpoint to an Iceberg table in one snapshot, when the checkpoint is complete.

    Several sinks of one or more stages may write to a table, concurrently with other writers; each changes only its own
    files. The table must exist, and it determines the columns, the partitions and the file properties.

    :param table: Identifier of the table, such as ``sales.orders``.
    :param catalog: Name of the catalog; by default the one that is configured for pyiceberg.
    :param properties: Properties of the pyiceberg catalog and of the table's storage, such as ``uri``; may contain
        credentials.
    :param buffer_bytes: Size in bytes of the rows that a task buffers before it writes one file per partition, by
        default 128 MiB.
    :param on_earlier_output: Handling of the output of earlier starts by a fresh start: ``retract`` removes it with the
        first commit, ``refuse`` fails the start.
    :raises InvalidConfigurationError: if an argument is out of range.
    """

    def __init__(
        self,
        table: str,
        *,
        catalog: str | None = None,
        properties: Mapping[str, Any] | None = None,
        buffer_bytes: int = _DEFAULT_BUFFER_BYTES,
        on_earlier_output: OnEarlierOutput = "retract",
    ) -> None:
        require_one_of("on_earlier_output", on_earlier_output, get_args(OnEarlierOutput))
        if buffer_bytes < 1:
            raise InvalidConfigurationError(f"Expected buffer_bytes of 1 or more, found {buffer_bytes}; raise it.")
        self.table = table
        self._address: TableAddress | None = TableAddress(table, catalog, properties)
        self._buffer_bytes = buffer_bytes
        self._refuses_earlier_output = on_earlier_output == "refuse"
        self._target: WriterTarget | None = None
        self._committer: IcebergCommitter | None = None

    def __repr__(self) -> str:
        return f"IcebergSink({self.table!r})"

    def __getstate__(self) -> dict[str, Any]:
        # Tasks write; only the driver needs the catalog and its credentials.
        address = self._address if self._target is None else None
        return {**self.__dict__, "_committer": None, "_address": address}

    def open(self, context: SinkContext) -> None:
        """
        Check the table and take ownership of it from earlier attempts.

        :raises StaleAttemptError: if a newer attempt owns the table.
        :raises EnvironmentNotReadyError: if the table or a package is missing, or the table has output of earlier
            starts that must not be replaced.
        :raises UnsupportedStateError: if the schema is incompatible with the table.
        :raises CorruptStateError: if output of the restored checkpoint is missing.
        :raises StorageError: if the catalog fails.
        """
        if self._address is None:
            raise CoordinatorError(
                f"Expected {self!r} to be opened on the driver, found the copy of a task; open it before tasks start."
            )
        self._release()
        table = OpenTable(self._address)
        try:
            self._committer = self._open_committer(context, table)
        except BaseException:
            table.close()
            raise

    def writer(self, context: SinkTaskContext) -> IcebergSinkWriter:
        """Return the writer of one Spark task."""
        if self._target is None:
            raise CoordinatorError(
                f"Expected {self!r} to be opened before it is used, found it unopened; open it on the driver."
            )
        return IcebergSinkWriter(self._target, context)

    def commit(self, checkpoint_id: int, committables: Sequence[Mapping[str, Any]]) -> None:
        """
        Add the files of a completed checkpoint; idempotent.

        :raises StaleAttemptError: if a newer attempt owns the table.
        :raises CorruptStateError: if the output differs from an earlier commit of the checkpoint.
        :raises IncompatibleCheckpointError: if another job has not committed its output of the restored savepoint.
        :raises StorageError: if the catalog fails, or all tries conflict with other commits.
        :raises CommitStateUnknownError: if the outcome of the commit is unknown; the next attempt checks the table.
        """
        if self._committer is None:
            raise CoordinatorError(f"Expected {self!r} to be open, found it closed; open it before commits.")
        self._committer.commit(checkpoint_id, [IcebergCommittable.from_json(document) for document in committables])
        # Vended credentials for the storage expire, often after an hour.
        self._update_target(self._committer.changes.table, self._committer.changes.lineage)

    def close(self, succeeded: bool) -> None:
        """
        End the attempt; after a success, remove the files of the sink outside its ancestry.

        :raises StaleAttemptError: if a newer attempt owns the table.
        """
        try:
            # After a failure, the next attempt determines which files it still needs.
            if self._committer is not None and succeeded:
                self._committer.close()
        finally:
            self._release()

    def _open_committer(self, context: SinkContext, table: OpenTable) -> IcebergCommitter:
        lineage = lineage_of(context.job_id, context.uid)
        loaded = table.load()
        with table.redacted_failures():
            require_writable_table(loaded, table.name)
            require_partitionable(loaded, table.name)
            require_fitting_columns(loaded, context.schema, table.name)
        self._update_target(table, lineage)
        new = TableLedger(job_name=context.job_name, uid=context.uid)
        changes = TableChanges(table=table, lineage=lineage, epoch=context.epoch, new_ledger=new)
        committer = IcebergCommitter(
            changes=changes, context=context, refuses_earlier_output=self._refuses_earlier_output
        )
        committer.open()
        return committer

    def _update_target(self, table: OpenTable, lineage: str) -> None:
        with table.redacted_failures():
            self._target = WriterTarget.of(table.latest, table.name, lineage, self._buffer_bytes)

    def _release(self) -> None:
        committer, self._committer = self._committer, None
        if committer is not None:
            committer.changes.table.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergCommitter:
    """Driver side of an Iceberg sink: the ownership of a table by one attempt."""

    changes: TableChanges
    context: SinkContext
    refuses_earlier_output: bool

    def open(self) -> None:
        """
        Take ownership of the table.

        :raises StaleAttemptError: if a newer attempt owns the table.
        :raises EnvironmentNotReadyError: if the table has output of earlier starts that must not be replaced.
        :raises CorruptStateError: if output of the restored checkpoint is missing, or output to remove cannot be
            identified.
        """
        self.changes.make(self._begin)

    def commit(self, checkpoint_id: int, committables: Sequence[IcebergCommittable]) -> None:
        """
        Add the files of a checkpoint.

        :raises StaleAttemptError: if a newer attempt owns the table.
        :raises CorruptStateError: if the output differs from an earlier commit of the checkpoint, or the table was
            recreated.
        :raises IncompatibleCheckpointError: if another job has not committed its output of the restored savepoint.
        """
        own = [task for task in committables if task.lineage == self.changes.lineage]
        foreign = [task for task in committables if task.lineage != self.changes.lineage and task.files]
        if foreign:
            require_foreign_output_committed(self.changes.read()[0], self.changes.table.name, checkpoint_id, foreign)
        if not own and (committables or checkpoint_id <= (self.context.restored_checkpoint_id or 0)):
            return  # no output, and the attempt that took the checkpoint is unknown
        self.changes.make(lambda table, ledger: self._add(table, ledger, checkpoint_id, own))

    def close(self) -> None:
        """
        Remove the files outside the ancestry of this attempt.

        :raises StaleAttemptError: if a newer attempt owns the table.
        :raises CorruptStateError: if the table was recreated.
        """
        self.changes.make(self._end)

    def _begin(self, table: Any, ledger: TableLedger) -> Change | None:
        context = self.context
        start = Start(context.generation, context.restored_checkpoint_id, context.restored_epoch)
        known = ledger.starts.get(context.epoch)
        if known == start and ledger.epoch == context.epoch:
            return None
        if known is not None and any(commit.epoch == context.epoch for commit in ledger.commits):
            raise CoordinatorError(
                f"Expected attempt {context.epoch} to keep its restored checkpoint after its first commit to the Iceberg "
                f"table {self.changes.table.name}, found checkpoint {start.restored} restored; register a new attempt."
            )
        if self.refuses_earlier_output and start.restored is None:
            refuse_earlier_output(ledger, self.changes.table.name)
        if not ledger.starts:
            refuse_output_of_removed_stages(
                self.context, f"the Iceberg table {self.changes.table.name}", _output_test(table)
            )
        warn_if_unknown(ledger, start, self.changes.table.name)
        begun = ledger.begun(context.epoch, start)
        require_output_of_restored(table, ledger, begun.history.ancestry_of(context.epoch), self.changes.table.name)
        # Fails the start if output cannot be identified that a later commit must remove.
        self._removed(table, begun.outside(begun.history.ancestry_of(context.epoch)))
        return Change(ledger=begun)

    def _add(
        self, table: Any, ledger: TableLedger, checkpoint_id: int, own: Sequence[IcebergCommittable]
    ) -> Change | None:
        require_opened(ledger, self.context.epoch, self.changes.table.name)
        commit = self._commit_of(ledger, checkpoint_id, own)
        known = ledger.find(commit.generation, checkpoint_id)
        if known is not None:
            self._require_same(known, commit)
            return None
        if not self._is_next(ledger, commit):
            return _retract_uncommitted(ledger, commit)
        replaced = ledger.outside(ledger.history.ancestry_of(commit.epoch, checkpoint_id))
        if not commit.files and not replaced:
            return None
        files = [decode_data_file(file) for task in own for file in task.files]
        require_same_spec(table, files, self.changes.table.name)
        require_files_exist(table, files, checkpoint_id, self.changes.table.name)
        return Change(
            ledger=ledger,
            commit=commit if commit.files else None,
            add=files,
            remove=self._removed(table, replaced),
            retracted=replaced,
        )

    def _end(self, table: Any, ledger: TableLedger) -> Change | None:
        require_opened(ledger, self.context.epoch, self.changes.table.name)
        replaced = ledger.outside(ledger.history.ancestry_of(self.context.epoch))
        if not replaced:
            return None
        return Change(ledger=ledger, remove=self._removed(table, replaced), retracted=replaced)

    def _commit_of(self, ledger: TableLedger, checkpoint_id: int, own: Sequence[IcebergCommittable]) -> TableCommit:
        epoch = max((task.epoch for task in own), default=self.context.epoch)
        start = ledger.starts.get(epoch)
        return TableCommit(
            generation=start.generation if start else self.context.generation,
            checkpoint_id=checkpoint_id,
            epoch=epoch,
            files=sum(len(task.files) for task in own),
            rows=sum(int(file["rows"]) for task in own for file in task.files),
        )

    def _is_next(self, ledger: TableLedger, commit: TableCommit) -> bool:
        newest = ledger.newest
        if newest is None or newest.order < commit.order:
            return True
        ancestry = ledger.history.ancestry_of(self.context.epoch)
        is_replaced = commit.order in ledger.retracted or (
            ancestry.holds(*newest.order) and not ancestry.holds(*commit.order)
        )
        if not commit.files or is_replaced:
            log.info("Skipping the commit of checkpoint %s to %s", commit.checkpoint_id, self.changes.table.name)
            return False
        raise CoordinatorError(
            f"Expected to commit a checkpoint after {newest.checkpoint_id} of attempt {newest.epoch} to the Iceberg table "
            f"{self.changes.table.name}, found checkpoint {commit.checkpoint_id} of attempt {commit.epoch}; restore from "
            f"checkpoint {newest.checkpoint_id}, or start over.",
            checkpoint_id=commit.checkpoint_id,
        )

    def _require_same(self, known: TableCommit, commit: TableCommit) -> None:
        if (known.files, known.rows) != (commit.files, commit.rows):
            raise CorruptStateError(
                f"Expected the same output with each commit of checkpoint {known.checkpoint_id} to the Iceberg table "
                f"{self.changes.table.name}, found {commit.rows} rows and {known.rows} committed rows; another checkpoint "
                "with this id was committed. Start over.",
                checkpoint_id=known.checkpoint_id,
            )

    def _removed(self, table: Any, replaced: Sequence[TableCommit]) -> list[Any]:
        return files_of(table, self.changes.lineage, replaced, self.changes.table.name) if replaced else []


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChanges:
    """
    Commits changes of a table on behalf of one attempt, with retries.

    After a commit with an unknown outcome, the change is decided again from the current table. If the first commit
    succeeded, no change is left; if it arrives later, the catalog rejects it because the table has changed.
    """

    table: OpenTable
    lineage: str
    epoch: int
    new_ledger: TableLedger
    """Ledger for a lineage that has not opened the table yet."""
    sleep: Callable[[float], None] = time.sleep
    random: Callable[[], float] = random.random
    """Function that returns a number in ``[0, 1)`` for the jitter of pauses."""

    def read(self) -> tuple[Any, TableLedger]:
        """
        Return the table with its ledger.

        :raises StaleAttemptError: if a newer attempt owns the table.
        """
        table = self.table.load()
        with self.table.redacted_failures():
            ledger = read_ledger(table, self.lineage) or self.new_ledger
        ledger.require_newest(self.epoch, self.table.name)
        return table, ledger

    def make(self, decide: Decision) -> None:
        """
        Commit changes until no change is left.

        :raises StaleAttemptError: if a newer attempt owns the table.
        :raises StorageError: if all tries conflict with other commits, or the storage fails.
        :raises CommitStateUnknownError: if the outcome of the last commit is unknown.
        """
        for number in range(_TRIES - 1):
            failure = self._make_once(decide)
            if failure is None:
                return
            log.warning("Retrying the commit to the Iceberg table %s: %s", self.table.name, failure)
            self.sleep(min(_LONGEST_PAUSE_SECONDS, 0.1 * 2**number) * self.random())
        failure = self._make_once(decide)
        if failure is not None:
            raise failure

    def _make_once(self, decide: Decision) -> StateCheckError | None:
        table, ledger = self.read()
        with self.table.redacted_failures():
            change = decide(table, ledger)
        return None if change is None else self._try(table, change)

    def _try(self, table: Any, change: Change) -> StateCheckError | None:
        from pyiceberg.exceptions import CommitFailedException

        try:
            staged = iceberg_ledger.stage_change(table, self.lineage, change)
        except Exception as error:
            return self.table.storage_error(error)
        try:
            iceberg_ledger.commit_change(table, staged)
        except CommitFailedException as error:
            return StorageError(
                f"Expected to commit to the Iceberg table {self.table.name}, found a concurrent commit: {error}; retry the "
                "task."
            )
        except Exception as error:
            return CommitStateUnknownError(
                f"Expected a reply to a commit, found none: {self.table.storage_error(error)} The state of the commit is unknown; "
                "retry the task, which checks the table."
            )
        return None


def _retract_uncommitted(ledger: TableLedger, commit: TableCommit) -> Change | None:
    # Prevents a later attempt from restoring the checkpoint, whose output is missing.
    if not commit.files or commit.order in ledger.retracted:
        return None
    return Change(ledger=ledger.without(commit))


def _output_test(table: Any) -> Callable[[str], bool]:
    def has_output(lineage: str) -> bool:
        ledger = read_ledger(table, lineage)
        return ledger is not None and bool(ledger.commits)

    return has_output
