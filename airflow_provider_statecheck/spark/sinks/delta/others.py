"""Output of another job, at whose savepoint this one begins: that job alone may commit it."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from airflow_provider_statecheck.exceptions import IncompatibleCheckpointError
from airflow_provider_statecheck.spark.sinks.delta.committable import DeltaCommittable
from airflow_provider_statecheck.spark.sinks.delta.files import DeltaFiles
from airflow_provider_statecheck.spark.sinks.delta.standing import Standing
from airflow_provider_statecheck.spark.sinks.delta.table import DeltaTableAccess
from airflow_provider_statecheck.spark.sinks.ledger import Ledger

log = logging.getLogger(__name__)


def require_committed_by_others(
    table: DeltaTableAccess, files: DeltaFiles, committables: Iterable[DeltaCommittable]
) -> None:
    """
    Refuse to begin at a savepoint of another job that has not committed its output.

    :param committables: What the savepoint has of other lineages.
    :raises IncompatibleCheckpointError: if some of it was never part of the table.
    """
    named: dict[str, set[str]] = {}
    for task in committables:
        named.setdefault(task.lineage, set()).update(file.name for file in task.files)
    for lineage, names in named.items():
        theirs = Ledger.load(DeltaFiles(files.storage, lineage))
        if not theirs.starts:
            log.warning(
                "The savepoint is of a job that writes elsewhere; what it had not committed is left to that job"
            )
            continue
        unknown = names - _committed(Standing(lineage, theirs, table.snapshot(), 0, table.shown))
        if unknown:
            raise IncompatibleCheckpointError(
                f"Expected all output of the savepoint to be committed to {table.shown}, found {len(unknown)} file(s) of "
                f"lineage {lineage} that never were: the job that took the savepoint ended before. Let that job go on until "
                "it succeeds, or take another savepoint of it."
            )


def _committed(standing: Standing) -> set[str]:
    newest = standing.newest
    records = standing.ledger.intents.values()
    return {name for r in records if newest is not None and r.order <= newest.order for name in r.staged}
