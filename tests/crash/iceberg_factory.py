"""An Iceberg sink for the kill suite, which counts what it asks of the catalog."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.spark.sinks.iceberg import iceberg_destination
from airflow_provider_statecheck.spark.sinks.iceberg_sink import IcebergSink
from airflow_provider_statecheck.spark.tables.iceberg import OpenTable

if TYPE_CHECKING:
    from airflow_provider_statecheck.testing.faults import FaultPlan

TABLE = "sales.totals"
CHANGE = "sink.change_table"
"""The step at which a driver has read the ledger, has decided, and has not asked the catalog yet."""


def properties_in(work: Path) -> dict[str, str]:
    """Return the catalog of a try."""
    return {"type": "sql", "uri": f"sqlite:///{work}/catalog.db", "warehouse": f"file://{work}/warehouse"}


def make(work: Path, plan: FaultPlan) -> IcebergSink:
    """Return the sink; the process is the driver of one try, and ends with it."""
    iceberg_destination.commit_edit = _counted(plan, CHANGE, iceberg_destination.commit_edit)
    OpenTable.load = _counted(plan, "sink.load_table", OpenTable.load)  # type: ignore[method-assign]
    return IcebergSink(TABLE, properties=properties_in(work))


def _counted(plan: FaultPlan, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def counted(*args: Any) -> Any:
        return plan.carry_out(name, lambda: call(*args), StorageError)

    return counted
