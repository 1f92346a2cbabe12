"""The driver's part of a Delta sink: which files become part of the table, when, and which have to go."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_statecheck.exceptions import CorruptStateError, StorageError
from airflow_provider_statecheck.spark.sinks.committable import decode_schema
from airflow_provider_statecheck.spark.sinks.delta.attempt_checks import (
    require_all_named,
    require_dead,
    require_first_opening,
    require_output_of_restored,
    require_owner,
    require_there,
    warn_if_unknown,
)
from airflow_provider_statecheck.spark.sinks.delta.checks import require_fitting, require_writable_table
from airflow_provider_statecheck.spark.sinks.delta.committable import DeltaCommittable, DeltaFile
from airflow_provider_statecheck.spark.sinks.delta.files import DeltaFiles
from airflow_provider_statecheck.spark.sinks.delta.names import (
    data_directory,
    end_of,
    epoch_of_data_file,
    generation_key,
    head_of,
)
from airflow_provider_statecheck.spark.sinks.delta.others import require_committed_by_others
from airflow_provider_statecheck.spark.sinks.delta.records import DeltaRecords
from airflow_provider_statecheck.spark.sinks.delta.replacing import refuse_earlier_output, require_replaceable
from airflow_provider_statecheck.spark.sinks.delta.schemas import file_schema, new_columns
from airflow_provider_statecheck.spark.sinks.delta.standing import Standing
from airflow_provider_statecheck.spark.sinks.delta.table import DeltaCommit, DeltaSnapshot, DeltaTableAccess
from airflow_provider_statecheck.spark.sinks.gone_sinks import refuse_output_of_gone
from airflow_provider_statecheck.spark.sinks.ledger import Ledger, in_parallel
from airflow_provider_statecheck.spark.sinks.line import History, Start
from airflow_provider_statecheck.spark.sinks.record import CommitRecord
from airflow_provider_statecheck.spark.sinks.sink import SinkContext

_ALL = sys.maxsize
# Each loss means that another writer has won, so this is how many of them may come in between.
_TRIES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRules:
    """What a user has chosen."""

    partition_by: tuple[str, ...]
    refuses_earlier_output: bool
    merges_schema: bool


@dataclass(slots=True)
class DeltaCommitter:
    """One attempt's hold on a table."""

    table: DeltaTableAccess
    files: DeltaFiles
    context: SinkContext
    rules: CommitRules
    _ledger: Ledger = field(init=False)
    _table_id: str | None = field(init=False, default=None)

    def open(self) -> None:
        """
        Take the table over.

        :raises StaleAttemptError: A newer attempt has it.
        :raises EnvironmentNotReadyError: Nothing can be written there.
        :raises UnsupportedStateError: What is to be written does not fit the table.
        :raises CorruptStateError: Output of the restored checkpoint is gone, or what is to be replaced was rewritten.
        """
        self._ledger = Ledger.load(self.files)
        self._ledger.require_newest(self.context.epoch)
        standing = self._standing()
        require_owner(standing, self.context.epoch)
        if self.rules.refuses_earlier_output and self.context.restored_checkpoint_id is None:
            refuse_earlier_output(standing)
        self._refuse_output_of_gone(standing)
        self._require_fitting(standing.snapshot, self.context.schema)
        start = Start(self.context.generation, self.context.restored_checkpoint_id, self.context.restored_epoch)
        require_first_opening(standing, self.context.epoch, start)
        warn_if_unknown(standing, start)
        require_output_of_restored(standing, start)
        history = self._ledger.history()
        line = History({**history.starts, self.context.epoch: start}, history.taken).line_to(self.context.epoch, _ALL)
        require_replaceable(standing, self._records.without_files(_ALL, line), self.files)
        self._ledger.begin_attempt(self.context.epoch, start)
        self._repeat(self._take_over)

    def commit(self, checkpoint_id: int, committables: Sequence[DeltaCommittable]) -> None:
        """
        Make what belongs to a checkpoint part of the table.

        :raises StaleAttemptError: A newer attempt has the table.
        :raises CorruptStateError: Output is missing or was changed.
        :raises IncompatibleCheckpointError: It is of another job, which has not committed it.
        :raises UnsupportedStateError: It does not fit the table.
        """
        ours = [task for task in committables if task.lineage == self.files.lineage]
        others = [task for task in committables if task.lineage != self.files.lineage]
        if others:
            require_committed_by_others(self.table, self.files, others)
        if not ours and (committables or checkpoint_id <= (self.context.restored_checkpoint_id or 0)):
            return  # nothing to commit, and nothing tells which attempt of ours took it
        self._repeat(lambda standing: self._try_commit(standing, checkpoint_id, ours))

    def close(self) -> None:
        """
        Clean up after a success.

        :raises StaleAttemptError: A newer attempt has the table.
        :raises CorruptStateError: What is to be replaced was rewritten.
        """
        self._repeat(self._try_end)
        self._sweep()

    @property
    def _records(self) -> DeltaRecords:
        return DeltaRecords(self.context, self.rules.partition_by)

    def _repeat(self, step: Callable[[Standing], bool]) -> None:
        for _ in range(_TRIES):
            standing = self._standing()
            require_owner(standing, self.context.epoch)
            if step(standing):
                return
        raise StorageError(
            f"Expected to commit to the Delta table {self.table.shown}, found that others were faster {_TRIES} times; let fewer "
            "write to it at once, and run the task again."
        )

    def _standing(self) -> Standing:
        snapshot = self.table.snapshot()
        self._require_same_table(snapshot)
        standing = Standing(self.files.lineage, self._ledger, snapshot, self.context.generation, self.table.shown)
        if not standing.lacks_records:
            return standing
        # An older attempt has committed after the ledger was read, and before it was fenced.
        self._ledger = Ledger.load(self.files)
        return replace(standing, ledger=self._ledger)

    def _take_over(self, standing: Standing) -> bool:
        versions = {head_of(self.files.lineage): self.context.epoch}
        if standing.head == self.context.epoch:
            return True
        if standing.snapshot is not None:
            return self.table.commit(standing.snapshot, DeltaCommit(versions=versions, note=self._note("begins")))
        if self.context.schema is None:
            return True
        schema = file_schema(self.context.schema)
        return self.table.create(
            schema, self.rules.partition_by, DeltaCommit(versions=versions, note=self._note("begins"))
        )

    def _try_commit(self, standing: Standing, checkpoint_id: int, tasks: Sequence[DeltaCommittable]) -> bool:
        record = self._records.of_checkpoint(standing, checkpoint_id, tasks)
        newest = standing.newest
        if standing.is_committed(record):
            require_all_named(self._ledger, record, tasks, self.context.epoch, self.table.shown)
            return True
        if newest is not None and newest.order > record.order:
            require_dead(standing, record, newest, self.context.epoch)
            return True
        files = {file.name: file for task in tasks for file in task.files if file.name in record.staged}
        return self._publish(standing, record, list(files.values()))

    def _publish(self, standing: Standing, record: CommitRecord, files: Sequence[DeltaFile]) -> bool:
        removed = require_replaceable(standing, record, self.files)
        if not files and not removed:
            return True
        schema = decode_schema(record.schema) if record.schema else None
        self._require_fitting(standing.snapshot, schema)
        require_there(self.files, record, files)
        if record.key not in self._ledger.intents:
            self._ledger.intend(record)
        versions = {
            head_of(self.files.lineage): self.context.epoch,
            generation_key(self.files.lineage, record.generation): record.checkpoint_id,
        }
        note = self._note("commits", record, retracted=len(removed))
        commit = DeltaCommit(versions=versions, note=note, added=files, removed=removed)
        if standing.snapshot is None:
            return self.table.create(schema, self.rules.partition_by, commit)
        if self._widens(standing.snapshot, schema):
            return False
        return self.table.commit(standing.snapshot, commit)

    def _widens(self, snapshot: DeltaSnapshot, schema: Any) -> bool:
        import pyarrow as pa

        missing = [] if schema is None else new_columns(snapshot.schema, schema)
        if missing:
            versions = {head_of(self.files.lineage): self.context.epoch}
            columns = pa.schema([schema.field(name) for name in missing])
            # Whoever wins, the table is another one now and is looked at again.
            self.table.add_columns(snapshot, columns, DeltaCommit(versions=versions, note=self._note("adds columns")))
        return bool(missing)

    def _try_end(self, standing: Standing) -> bool:
        line = self._ledger.history().line_to(self.context.epoch, _ALL)
        newest = standing.newest
        if standing.snapshot is None or (newest is not None and line.holds(newest.epoch, newest.checkpoint_id)):
            return True
        restored = self.context.restored_checkpoint_id or 0
        record = self._records.without_files(restored, self._ledger.history().line_to(self.context.epoch, restored))
        removed = require_replaceable(standing, record, self.files)
        if not removed:
            return True
        self._ledger.intend(record)
        versions = dict.fromkeys((head_of(self.files.lineage), end_of(self.files.lineage)), self.context.epoch)
        note = self._note("ends", record, retracted=len(removed))
        return self.table.commit(standing.snapshot, DeltaCommit(versions=versions, note=note, removed=removed))

    def _sweep(self) -> None:
        snapshot = self.table.snapshot()
        directory = data_directory(self.files.lineage)
        named = {file.name for record in self._ledger.intents.values() for file in record.files}
        named |= frozenset() if snapshot is None else snapshot.own_files
        names = [f"{directory}/{name}" for name in self.files.list_files(directory)]
        strays = [n for n in names if n not in named and 0 < epoch_of_data_file(n) <= self.context.epoch]
        in_parallel(self.files.delete, strays, is_local=self.files.is_local)

    def _require_fitting(self, snapshot: DeltaSnapshot | None, schema: Any) -> None:
        if snapshot is not None:
            require_writable_table(self.table, snapshot)
        rules = self.rules
        require_fitting(self.table, snapshot, schema, rules.partition_by, merges=rules.merges_schema)

    def _refuse_output_of_gone(self, standing: Standing) -> None:
        def has_output(lineage: str) -> bool:
            theirs = Ledger.load(DeltaFiles(self.files.storage, lineage))
            return Standing(lineage, theirs, standing.snapshot, 0, standing.shown).has_output

        if not self._ledger.starts:
            refuse_output_of_gone(self.context, standing.shown, has_output)

    def _require_same_table(self, snapshot: DeltaSnapshot | None) -> None:
        found = None if snapshot is None else snapshot.table_id
        if self._table_id is not None and found != self._table_id:
            raise CorruptStateError(
                f"Expected the Delta table {self.table.shown} that this attempt opened, found "
                f"{'none' if found is None else 'one that was made anew'}; run the task again."
            )
        self._table_id = found

    def _note(self, what: str, record: CommitRecord | None = None, **more: Any) -> dict[str, Any]:
        told = {} if record is None else {"checkpoint": record.checkpoint_id, "generation": record.generation}
        owner = {"job": self.context.job_name, "uid": self.context.uid, "epoch": self.context.epoch}
        return {"attempt": what, **owner, **told, **more}
