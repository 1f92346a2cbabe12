"""A Parquet sink for crash tests, whose log and files are steps at which a driver can end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.spark.sinks.commits.commit_files import CommitFiles
from airflow_provider_statecheck.spark.sinks.parquet_sink import ParquetSink
from airflow_provider_statecheck.spark.sinks.target_files import TargetFiles
from airflow_provider_statecheck.testing.faults import FaultPlan

TABLE = "table"
_STEPS: list[tuple[type[Any], str]] = [
    (CommitFiles, "write"),
    (CommitFiles, "write_publication"),
    (TargetFiles, "move"),
    (TargetFiles, "delete"),
]


def make(work: Path, plan: FaultPlan) -> ParquetSink:
    """Return the sink; the patched classes live as long as the driver, which is a process of its own."""
    for kind, name in _STEPS:
        setattr(kind, name, _counted(getattr(kind, name), f"sink.{name}", plan))
    return ParquetSink(str(work / TABLE))


def _counted(method: Callable[..., Any], name: str, plan: FaultPlan) -> Callable[..., Any]:
    def counted(*args: Any) -> Any:
        return plan.carry_out(name, lambda: method(*args), StorageError)

    return counted
