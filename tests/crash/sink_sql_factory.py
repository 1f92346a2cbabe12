"""SQL sinks whose steps inside a commit can be told to fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.spark.sinks.sql.sql_destination import SqlDestination
from airflow_provider_statecheck.spark.sinks.sql_sink import SqlSink
from airflow_provider_statecheck.spark.sinks.target_files import TargetFiles
from airflow_provider_statecheck.testing.faults import FaultPlan

URL_FILE, TABLE = "url.txt", "crash_totals"
_STEPS: list[tuple[type[Any], str]] = [
    (SqlDestination, "apply"),
    (SqlDestination, "_replace_log"),
    (SqlDestination, "_retract"),
    (SqlDestination, "_publish"),
    (TargetFiles, "delete"),
]


def appending(work: Path, plan: FaultPlan) -> SqlSink:
    """Return a sink that adds rows."""
    _count(plan)
    return SqlSink((work / URL_FILE).read_text(), TABLE, staging=str(work / "staging"))


def upserting(work: Path, plan: FaultPlan) -> SqlSink:
    """Return a sink that replaces rows by their number."""
    _count(plan)
    return SqlSink((work / URL_FILE).read_text(), TABLE, staging=str(work / "staging"), upsert_by=["number"])


def _count(plan: FaultPlan) -> None:
    # For good: the process is that of one driver.
    for kind, name in _STEPS:
        setattr(kind, name, _counted(getattr(kind, name), f"sink.{name}", plan))


def _counted(method: Any, name: str, plan: FaultPlan) -> Any:
    def counted(*args: Any) -> Any:
        return plan.carry_out(name, lambda: method(*args), StorageError)

    return counted
