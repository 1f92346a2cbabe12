"""
Sinks for crash tests; the calls that write to their destinations are steps at which a driver can end.

Each driver imports only what its sink needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.testing.faults import FaultPlan
from airflow_provider_statecheck.testing.sink_faults import LOG_STEPS, Step, counted

if TYPE_CHECKING:
    from airflow_provider_statecheck.spark.connectors.sink import Sink

URL_FILE, SQL_TABLE, ICEBERG_TABLE = "url.txt", "crash_totals", "sales.totals"


def parquet(work: Path, plan: FaultPlan) -> Sink:
    """Return a sink for a directory."""
    from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink
    from tests.unit.spark.connectors.test_sink_contracts import TestParquetSinkWithRenames

    _count(plan, TestParquetSinkWithRenames.steps)
    return ParquetSink(str(work / "table"))


def delta(work: Path, plan: FaultPlan) -> Sink:
    """Return a sink for a Delta table."""
    from airflow_provider_statecheck.spark.connectors.delta.sink import DeltaSink
    from tests.unit.spark.connectors.test_sink_contracts import TestDeltaSink

    _count(plan, TestDeltaSink.steps)
    return DeltaSink(str(work / "table"))


def iceberg(work: Path, plan: FaultPlan) -> Sink:
    """Return a sink for an Iceberg table, which must exist."""
    from airflow_provider_statecheck.spark.connectors.iceberg.sink import IcebergSink
    from tests.unit.spark.connectors.iceberg.tables import properties_in
    from tests.unit.spark.connectors.test_sink_contracts import TestIcebergSink

    _count(plan, TestIcebergSink.steps)
    return IcebergSink(ICEBERG_TABLE, properties=properties_in(work))


def sql(work: Path, plan: FaultPlan, **settings: Any) -> Sink:
    """Return a sink that adds rows to a table."""
    from airflow_provider_statecheck.spark.connectors.sql.sink import SqlSink
    from tests.unit.spark.connectors.test_sink_contracts import TestSqlSinkOnSqlite

    _count(plan, TestSqlSinkOnSqlite.steps)
    return SqlSink((work / URL_FILE).read_text(), SQL_TABLE, staging=str(work / "staging"), **settings)


def upserting_sql(work: Path, plan: FaultPlan) -> Sink:
    """Return a sink that replaces the rows of a table by their number."""
    return sql(work, plan, upsert_by=["number"])


def folder(work: Path, plan: FaultPlan) -> Sink:
    """Return a sink of a user's own."""
    from tests.unit.spark.connectors.folder_sink import FolderSink

    # Tasks, which write and may abort, run in other processes.
    _count(plan, (*LOG_STEPS, (FolderSink, "commit_transaction"), (FolderSink, "abort_transaction")))
    return FolderSink(work / "output")


def _count(plan: FaultPlan, steps: Sequence[Step]) -> None:
    # For the life of the process, which is that of one driver.
    for owner, name in steps:
        setattr(owner, name, counted(getattr(owner, name), f"sink.{name}", plan))
