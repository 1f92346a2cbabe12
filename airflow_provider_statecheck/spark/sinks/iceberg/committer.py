"""The driver's part of an Iceberg sink: which files become part of the table, when, and which have to go."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.exceptions import CoordinatorError, CorruptStateError
from airflow_provider_statecheck.spark.sinks.gone_sinks import refuse_output_of_gone
from airflow_provider_statecheck.spark.sinks.iceberg.committable import IcebergCommittable
from airflow_provider_statecheck.spark.sinks.iceberg.committing import TableChanges
from airflow_provider_statecheck.spark.sinks.iceberg.data_files import decode_data_file
from airflow_provider_statecheck.spark.sinks.iceberg.ledger import TableCommit, TableLedger
from airflow_provider_statecheck.spark.sinks.iceberg.ledger_branch import Change, read_ledger
from airflow_provider_statecheck.spark.sinks.iceberg.own_files import files_of
from airflow_provider_statecheck.spark.sinks.iceberg.table_checks import (
    refuse_earlier_output,
    require_committed_by_others,
    require_opened,
    require_output_of_restored,
    require_same_spec,
    require_there,
    warn_if_unknown,
)
from airflow_provider_statecheck.spark.sinks.line import Start
from airflow_provider_statecheck.spark.sinks.sink import SinkContext

log = logging.getLogger(__name__)

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
