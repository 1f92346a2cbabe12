"""Changes of a table that others change too: each is decided on what the table is at that moment, and made on that alone."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.exceptions import CommitStateUnknownError, StateCheckError, StorageError
from airflow_provider_statecheck.spark.sinks.iceberg import ledger_branch
from airflow_provider_statecheck.spark.sinks.iceberg.catalogs import OpenTable
from airflow_provider_statecheck.spark.sinks.iceberg.ledger import TableLedger
from airflow_provider_statecheck.spark.sinks.iceberg.ledger_branch import Change, read_ledger

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
        with self.table.failures_told():
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
        with self.table.failures_told():
            change = decide(table, ledger)
        return None if change is None else self._try(table, change)

    def _try(self, table: Any, change: Change) -> StateCheckError | None:
        from pyiceberg.exceptions import CommitFailedException

        try:
            staged = ledger_branch.stage_change(table, self.lineage, change)
        except Exception as error:
            return self.table.told(error)
        try:
            ledger_branch.commit_change(table, staged)
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
