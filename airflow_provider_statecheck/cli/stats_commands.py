"""The command that tells what was counted of the checkpoints of a job."""

from __future__ import annotations

from argparse import Namespace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.statistics.custody import custody_of
from airflow_provider_statecheck.checkpoint.statistics.snapshot import snapshot_of
from airflow_provider_statecheck.checkpoint.units import readable_size
from airflow_provider_statecheck.cli.exits import Exit, command
from airflow_provider_statecheck.cli.printing import Row, print_rows, shown
from airflow_provider_statecheck.cli.selection import operators_of
from airflow_provider_statecheck.hooks.maintenance import find_job, maintenance_gateway

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.job_view import JobView
    from airflow_provider_statecheck.checkpoint.statistics.entries import CheckpointEntry
    from airflow_provider_statecheck.checkpoint.statistics.snapshot import CheckpointStatsSnapshot
    from airflow_provider_statecheck.checkpoint.statistics.summary import StatsSummary

_PERCENT = 95


@command
def stats(args: Namespace) -> Exit:
    """Tell what was counted of each operator of a job, or its last checkpoints one by one."""
    view = find_job(maintenance_gateway(), args.job)
    operators = operators_of(view, args.uid)
    snapshots = [snapshot_of(view, operator) for operator in operators]
    if args.history:
        print_rows([_history_row(view, each, entry) for each in snapshots for entry in each.history], args.output)
    else:
        _print_overviews([_overview_row(each) for each in snapshots], args.output)
    return Exit.DONE


def _print_overviews(rows: list[Row], output: str) -> None:
    # So many columns fit no terminal: people get a line for each number.
    is_data = output in ("json", "yaml")
    print_rows(rows if is_data else [line for row in rows for line in _lines(row)], output)


def _lines(row: Row) -> list[Row]:
    numbers = {key: value for key, value in row.items() if key != "operator"}
    return [{"operator": row["operator"], "number": key, "value": _text(key, numbers[key])} for key in numbers]


def _text(key: str, value: Any) -> Any:
    return readable_size(value) if key.endswith("_bytes") and value is not None else value


def _overview_row(snapshot: CheckpointStatsSnapshot) -> Row:
    counts, completed, failed = snapshot.counts, snapshot.latest_completed, snapshot.latest_failed
    return {
        "operator": snapshot.uid,
        "total": counts.total,
        "in_progress": counts.in_progress,
        "completed": counts.completed,
        "failed": counts.failed,
        "restored": counts.restored,
        "savepoints": snapshot.savepoints.completed,
        **_size_columns(snapshot),
        **_seconds_columns(snapshot.duration),
        "to_discard": snapshot.awaiting_discard,
        "latest_completed": None if completed is None else shown(completed.location),
        "latest_failed": None if failed is None else shown(failed.location),
        "failure": None if failed is None else _failure(failed),
        "failures": [f"{reason}: {count}" for reason, count in snapshot.failures],
    }


def _size_columns(snapshot: CheckpointStatsSnapshot) -> Row:
    average = snapshot.state_size.average
    return {
        "average_new_bytes": None if average is None else round(average),
        "largest_new_bytes": snapshot.state_size.maximum,
        "largest_bytes": snapshot.full_size.maximum,
    }


def _seconds_columns(duration: StatsSummary) -> Row:
    return {
        "average_seconds": _seconds(duration.average),
        f"p{_PERCENT}_seconds": _seconds(duration.percentile(_PERCENT)),
        "longest_seconds": _seconds(duration.maximum),
    }


def _history_row(view: JobView, snapshot: CheckpointStatsSnapshot, entry: CheckpointEntry) -> Row:
    row = next((c for c in view.checkpoints if c.checkpoint_id == entry.checkpoint_id), None)
    custody = None if row is None else custody_of(view, row)
    return {
        "checkpoint": entry.checkpoint_id,
        "operator": snapshot.uid,
        "kind": entry.kind,
        "status": entry.status if row is None else row.status.value,
        "attempt": entry.epoch,
        "triggered_at": entry.triggered_at,
        "seconds": None if entry.duration is None else entry.duration.total_seconds(),
        "new_bytes": entry.state_size_bytes,
        "bytes": entry.full_size_bytes,
        "owner": None if custody is None else custody.owner.value,
        "safe_to_delete": None if custody is None else custody.is_safe_to_delete,
        "because": None if custody is None else custody.because,
        "pointer": shown(entry.location),
        "failure": _failure(entry),
    }


def _failure(entry: CheckpointEntry) -> str | None:
    if entry.failure_reason is None:
        return None
    late = "" if entry.late_at is None else f" (acknowledged after {_since(entry.late_at - entry.triggered_at)})"
    return f"{entry.failure_reason}: {entry.failure_cause}{late}"


def _since(elapsed: timedelta) -> str:
    return f"{elapsed.total_seconds():.1f} s"


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
