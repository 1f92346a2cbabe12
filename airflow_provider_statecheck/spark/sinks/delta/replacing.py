"""What a commit takes back, and whether it still can."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_statecheck.exceptions import CorruptStateError, EnvironmentNotReadyError
from airflow_provider_statecheck.spark.sinks.delta.files import DeltaFiles
from airflow_provider_statecheck.spark.sinks.delta.log import DeltaLog
from airflow_provider_statecheck.spark.sinks.delta.standing import Standing
from airflow_provider_statecheck.spark.sinks.record import CommitRecord


def refuse_earlier_output(standing: Standing) -> None:
    """
    Refuse to start over beside output of earlier starts.

    :raises EnvironmentNotReadyError: if there is some.
    """
    there = [record for record in standing.in_force if record.files]
    if there:
        rows = sum(file.rows for record in there for file in record.files)
        raise EnvironmentNotReadyError(
            f"Expected no output of earlier starts of {there[0].uid!r} of job {there[0].job_name!r} in {standing.shown}, found "
            f"{rows} rows of {len(there)} checkpoint(s); choose another table, restore from checkpoint "
            f"{max(there, key=lambda record: record.order).checkpoint_id}, or let on_earlier_output='retract' replace them."
        )


def require_replaceable(standing: Standing, record: CommitRecord, files: DeltaFiles) -> dict[str, int | None]:
    """
    Return the files of the table that go when a record comes to pass.

    :raises EnvironmentNotReadyError: if the table lets nothing be removed.
    :raises CorruptStateError: if somebody has written rows of ours into files of their own.
    """
    newest = standing.newest
    goes_on = newest is not None and record.line.holds(newest.epoch, newest.checkpoint_id)
    if standing.snapshot is None or goes_on:
        return {}  # the newest record has replaced what there was to replace
    removed = standing.replaced_by(record)
    if removed and standing.snapshot.handle.metadata().configuration.get("delta.appendOnly") == "true":
        raise EnvironmentNotReadyError(
            f"Expected to replace {len(removed)} file(s) of earlier output in {standing.shown}, found that the table is "
            "append-only; set delta.appendOnly to false, restore from the newest checkpoint, or choose another table."
        )
    lost = standing.taken_away_by_others(record)
    rewritten = _rewritten(DeltaLog(files.storage), standing.snapshot.version, lost) if lost else []
    if rewritten:
        raise CorruptStateError(
            f"Expected to replace the files of earlier output in {standing.shown}, found that somebody has rewritten "
            f"{len(rewritten)} of them, such as {rewritten[0]}, so that nobody can tell which rows were in them; OPTIMIZE, UPDATE "
            "and DELETE do so. Delete the rows of this job by hand, move the directory "
            f"_statecheck/{standing.lineage} of the table away, and run the task again; or write to another table."
        )
    return removed


def _rewritten(log: DeltaLog, version: int, names: Iterable[str]) -> list[str]:
    # Where whole files went and none came, the rows are gone.
    wanted = set(names)
    for entry in log.back_from(version):
        found = wanted & set(entry.removed)
        if found and not entry.added:
            wanted -= found
        elif found:
            break
        if not wanted:
            break
    return sorted(wanted)
