"""A Delta sink for crash tests, whose calls on the table and on its records are steps at which a driver can end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.spark.sinks.commits.commit_files import CommitFiles
from airflow_provider_statecheck.spark.sinks.delta.delta_destination import LogFiles
from airflow_provider_statecheck.spark.sinks.delta_sink import DeltaSink
from airflow_provider_statecheck.spark.tables.delta import DeltaTableAccess
from airflow_provider_statecheck.testing.faults import FaultPlan

TABLE = "table"


def make(work: Path, plan: FaultPlan) -> DeltaSink:
    """Return the sink; the patched classes live as long as the driver, which is a process of its own."""
    for owner, name in (
        (DeltaTableAccess, "create"),
        (DeltaTableAccess, "commit"),
        (LogFiles, "write"),
        (CommitFiles, "write_publication"),
    ):
        setattr(owner, name, _counted(getattr(owner, name), f"sink.{name}", plan))
    return DeltaSink(str(work / TABLE))


def _counted(method: Callable[..., Any], name: str, plan: FaultPlan) -> Callable[..., Any]:
    def counted(*args: Any) -> Any:
        return plan.carry_out(name, lambda: method(*args), StorageError)

    return counted
