"""An Iceberg table that receives the files of each completed checkpoint exactly once."""

from __future__ import annotations

import logging
import random
import sys
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
    require_committed_by_others,
    require_fitting_columns,
    require_opened,
    require_output_of_restored,
    require_partitionable,
    require_same_spec,
    require_there,
    require_writable_table,
    warn_if_unknown,
)
from airflow_provider_statecheck.spark.sinks.ledger import Start, refuse_output_of_gone
from airflow_provider_statecheck.spark.sinks.sink import OnEarlierOutput, SinkContext, SinkTaskContext, require_one_of
from airflow_provider_statecheck.spark.sinks.target_files import lineage_of

log = logging.getLogger(__name__)

Decision = Callable[[Any, TableLedger], Change | None]
"""What is to be changed in a table with a ledger; ``None`` if nothing is left to do."""

_TRIES = 12
_LONGEST_PAUSE_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChanges:
    """
    Makes changes on behalf of one attempt.

    A change whose outcome nobody knows is decided again: if it was made, nothing is left to do; if it is made later, what
    was decided meanwhile finds the table changed and is refused.
    """

    table: OpenTable
    lineage: str
    epoch: int
    new_ledger: TableLedger
    """Of a lineage that never opened the table."""
    sleep: Callable[[float], None] = time.sleep
    random: Callable[[], float] = random.random
    """A number from 0 to before 1: writers that met once shall not meet again."""

    def read(self) -> tuple[Any, TableLedger]:
        """
        Return the table with its ledger.

        :raises StaleAttemptError: if a newer attempt has the table.
        """
        table = self.table.load()
        with self.table.redacted_failures():
            ledger = read_ledger(table, self.lineage) or self.new_ledger
        ledger.require_newest(self.epoch, self.table.name)
        return table, ledger

    def make(self, decide: Decision) -> None:
        """
        Change the table until nothing is left to do.

        :raises StaleAttemptError: if a newer attempt has the table.
        :raises StorageError: if others commit faster, or the storage fails.
        :raises CommitStateUnknownError: if it is still unknown whether the change was made.
        """
        for number in range(_TRIES - 1):
            trouble = self._make_once(decide)
            if trouble is None:
                return
            log.warning("The commit to %s is tried again: %s", self.table.name, trouble)
            self.sleep(min(_LONGEST_PAUSE_SECONDS, 0.1 * 2**number) * self.random())
        trouble = self._make_once(decide)
        if trouble is not None:
            raise trouble

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
            return self.table.told(error)
        try:
            iceberg_ledger.commit_change(table, staged)
        except CommitFailedException as error:
            return StorageError(
                f"Expected to commit to the Iceberg table {self.table.name}, found others committing at each of several "
                f"tries: {error}; try again."
            )
        except Exception as error:
            return CommitStateUnknownError(
                f"It is not known whether a commit was made: {self.table.told(error)} The next attempt finds out."
            )
        return None


_ALL = sys.maxsize


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergCommitter:
    """One attempt's hold on a table."""

    changes: TableChanges
    context: SinkContext
    refuses_earlier_output: bool

    def open(self) -> None:
        """
        Take the table over.

        :raises StaleAttemptError: A newer attempt has it.
        :raises EnvironmentNotReadyError: It holds output of earlier starts that is not to be replaced.
        :raises CorruptStateError: Output of the restored checkpoint is gone, or output that has to go cannot be told.
        """
        self.changes.make(self._begin)

    def commit(self, checkpoint_id: int, committables: Sequence[IcebergCommittable]) -> None:
        """
        Add the files of a checkpoint.

        :raises StaleAttemptError: A newer attempt has the table.
        :raises CorruptStateError: It is not the output that was committed before, or the table was made anew.
        :raises IncompatibleCheckpointError: It is of another job, which has not committed it.
        """
        ours = [task for task in committables if task.lineage == self.changes.lineage]
        others = [task for task in committables if task.lineage != self.changes.lineage and task.files]
        if others:
            require_committed_by_others(self.changes.read()[0], self.changes.table.name, checkpoint_id, others)
        if not ours and (committables or checkpoint_id <= (self.context.restored_checkpoint_id or 0)):
            return  # nothing to add, and nothing tells which attempt of ours took it
        self.changes.make(lambda table, ledger: self._add(table, ledger, checkpoint_id, ours))

    def close(self) -> None:
        """
        Take out what this attempt did not go on from.

        :raises StaleAttemptError: A newer attempt has the table.
        :raises CorruptStateError: It was made anew.
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
                f"Expected attempt {context.epoch} to restore nothing after its own first commit to the Iceberg table "
                f"{self.changes.table.name}, found checkpoint {start.restored}; register a new attempt."
            )
        if self.refuses_earlier_output and start.restored is None:
            refuse_earlier_output(ledger, self.changes.table.name)
        if not ledger.starts:
            refuse_output_of_gone(self.context, f"the Iceberg table {self.changes.table.name}", _output_in(table))
        warn_if_unknown(ledger, start, self.changes.table.name)
        begun = ledger.begun(context.epoch, start)
        require_output_of_restored(table, ledger, begun.history.line_to(context.epoch, _ALL), self.changes.table.name)
        # Whatever has to go later must be found: better no start than an attempt that cannot commit.
        self._removed(table, begun.outside(begun.history.line_to(context.epoch, _ALL)))
        return Change(ledger=begun)

    def _add(
        self, table: Any, ledger: TableLedger, checkpoint_id: int, ours: Sequence[IcebergCommittable]
    ) -> Change | None:
        require_opened(ledger, self.context.epoch, self.changes.table.name)
        commit = self._commit_of(ledger, checkpoint_id, ours)
        known = ledger.find(commit.generation, checkpoint_id)
        if known is not None:
            self._require_same(known, commit)
            return None
        if not self._is_next(ledger, commit):
            return _given_up(ledger, commit)
        replaced = ledger.outside(ledger.history.line_to(commit.epoch, checkpoint_id))
        if not commit.files and not replaced:
            return None
        files = [decode_data_file(file) for task in ours for file in task.files]
        require_same_spec(table, files, self.changes.table.name)
        require_there(table, files, checkpoint_id, self.changes.table.name)
        return Change(
            ledger=ledger,
            commit=commit if commit.files else None,
            add=files,
            remove=self._removed(table, replaced),
            retracted=replaced,
        )

    def _end(self, table: Any, ledger: TableLedger) -> Change | None:
        require_opened(ledger, self.context.epoch, self.changes.table.name)
        replaced = ledger.outside(ledger.history.line_to(self.context.epoch, _ALL))
        if not replaced:
            return None
        return Change(ledger=ledger, remove=self._removed(table, replaced), retracted=replaced)

    def _commit_of(self, ledger: TableLedger, checkpoint_id: int, ours: Sequence[IcebergCommittable]) -> TableCommit:
        epoch = max((task.epoch for task in ours), default=self.context.epoch)
        start = ledger.starts.get(epoch)
        return TableCommit(
            generation=start.generation if start else self.context.generation,
            checkpoint_id=checkpoint_id,
            epoch=epoch,
            files=sum(len(task.files) for task in ours),
            rows=sum(int(file["rows"]) for task in ours for file in task.files),
        )

    def _is_next(self, ledger: TableLedger, commit: TableCommit) -> bool:
        newest = ledger.newest
        if newest is None or newest.order < commit.order:
            return True
        line = ledger.history.line_to(self.context.epoch, _ALL)
        is_replaced = commit.order in ledger.retracted or (line.holds(*newest.order) and not line.holds(*commit.order))
        if not commit.files or is_replaced:
            log.info("Checkpoint %s adds nothing to %s any more", commit.checkpoint_id, self.changes.table.name)
            return False
        raise CoordinatorError(
            f"Expected to commit no output to the Iceberg table {self.changes.table.name} but that of checkpoints after "
            f"{newest.checkpoint_id} of attempt {newest.epoch}, found checkpoint {commit.checkpoint_id} of attempt "
            f"{commit.epoch}; restore from checkpoint {newest.checkpoint_id}, or start over.",
            checkpoint_id=commit.checkpoint_id,
        )

    def _require_same(self, known: TableCommit, commit: TableCommit) -> None:
        if (known.files, known.rows) != (commit.files, commit.rows):
            raise CorruptStateError(
                f"Expected the same output with each commit of checkpoint {known.checkpoint_id} to the Iceberg table "
                f"{self.changes.table.name}, found {commit.rows} rows beside the {known.rows} that were committed; the "
                "checkpoint is not the one that was committed. Start over.",
                checkpoint_id=known.checkpoint_id,
            )

    def _removed(self, table: Any, replaced: Sequence[TableCommit]) -> list[Any]:
        return files_of(table, self.changes.lineage, replaced, self.changes.table.name) if replaced else []


def _given_up(ledger: TableLedger, commit: TableCommit) -> Change | None:
    # Nobody may go on from it later, as if its output were there.
    if not commit.files or commit.order in ledger.retracted:
        return None
    return Change(ledger=ledger.without(commit))


def _output_in(table: Any) -> Callable[[str], bool]:
    def has_output(lineage: str) -> bool:
        ledger = read_ledger(table, lineage)
        return ledger is not None and bool(ledger.commits)

    return has_output


_BUFFER_BYTES = 128 * 1024 * 1024


class IcebergSink:
    """
    Adds each checkpoint's output to an Iceberg table in one snapshot, when the checkpoint is complete.

    Several sinks, of one stage or of many, may write to a table, beside anybody else; none touches the files of another.
    The table must exist; its columns, its partitions and how its files are written are as it says.

    :param table: Its name with that of its namespace, such as ``sales.orders``.
    :param catalog: The name of the catalog; by default the one that is configured for pyiceberg.
    :param properties: What pyiceberg needs to know of the catalog and of the table's storage, such as ``uri``; they may be
        credentials.
    :param buffer_bytes: How many bytes of rows a task collects before it writes them as a file, or as one per partition.
    :param on_earlier_output: What a fresh start does with the output of earlier ones: ``retract`` takes it out with the first
        commit of the new one, ``refuse`` does not start.
    :raises InvalidConfigurationError: for a value out of its range.
    """

    def __init__(
        self,
        table: str,
        *,
        catalog: str | None = None,
        properties: Mapping[str, Any] | None = None,
        buffer_bytes: int = _BUFFER_BYTES,
        on_earlier_output: OnEarlierOutput = "retract",
    ) -> None:
        require_one_of("on_earlier_output", on_earlier_output, get_args(OnEarlierOutput))
        if buffer_bytes < 1:
            raise InvalidConfigurationError(f"Expected buffer_bytes of 1 or more, found {buffer_bytes}.")
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
        Check the table and take it over from earlier attempts.

        :raises StaleAttemptError: A newer attempt has it.
        :raises EnvironmentNotReadyError: It or a package is missing, or it holds output of earlier starts that is not to be replaced.
        :raises UnsupportedStateError: What is to be written does not fit it.
        :raises CorruptStateError: Output of the restored checkpoint is gone.
        :raises StorageError: The catalog does not answer.
        """
        if self._address is None:
            raise CoordinatorError(f"Expected {self!r} to be opened on the driver, found a copy of a task.")
        self._release()
        table = OpenTable(self._address)
        try:
            self._committer = self._opened_by(context, table)
        except BaseException:
            table.close()
            raise

    def writer(self, context: SinkTaskContext) -> IcebergSinkWriter:
        """Return the writer of one Spark task."""
        if self._target is None:
            raise CoordinatorError(f"Expected {self!r} to be opened before it is used; open it on the driver.")
        return IcebergSinkWriter(self._target, context)

    def commit(self, checkpoint_id: int, committables: Sequence[Mapping[str, Any]]) -> None:
        """
        Add the files of a completed checkpoint, once however often it is tried.

        :raises StaleAttemptError: A newer attempt has the table.
        :raises CorruptStateError: It is not the output that was committed before.
        :raises IncompatibleCheckpointError: It is of another job, which has not committed it.
        :raises StorageError: The catalog does not answer, or others commit faster.
        :raises CommitStateUnknownError: Nobody knows whether the commit was made; the next attempt finds out.
        """
        if self._committer is None:
            raise CoordinatorError(f"Expected {self!r} to be open, found it closed; open it before commits.")
        self._committer.commit(checkpoint_id, [IcebergCommittable.from_json(document) for document in committables])
        # Credentials that a catalog lends for the storage end, often after an hour.
        self._aim(self._committer.changes.table, self._committer.changes.lineage)

    def close(self, succeeded: bool) -> None:
        """
        End the attempt; after a success the table holds of this sink what the attempt went on from, and nothing else.

        :raises StaleAttemptError: A newer attempt has the table.
        """
        try:
            # After a failure the next attempt knows what is still needed.
            if self._committer is not None and succeeded:
                self._committer.close()
        finally:
            self._release()

    def _opened_by(self, context: SinkContext, table: OpenTable) -> IcebergCommitter:
        lineage = lineage_of(context.job_id, context.uid)
        loaded = table.load()
        with table.redacted_failures():
            require_writable_table(loaded, table.name)
            require_partitionable(loaded, table.name)
            require_fitting_columns(loaded, context.schema, table.name)
        self._aim(table, lineage)
        new = TableLedger(job_name=context.job_name, uid=context.uid)
        changes = TableChanges(table=table, lineage=lineage, epoch=context.epoch, new_ledger=new)
        committer = IcebergCommitter(
            changes=changes, context=context, refuses_earlier_output=self._refuses_earlier_output
        )
        committer.open()
        return committer

    def _aim(self, table: OpenTable, lineage: str) -> None:
        with table.redacted_failures():
            self._target = WriterTarget.of(table.latest, table.name, lineage, self._buffer_bytes)

    def _release(self) -> None:
        committer, self._committer = self._committer, None
        if committer is not None:
            committer.changes.table.close()
