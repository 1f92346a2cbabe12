"""Attempts of a stage as a Delta sink sees them, and what readers of its table see."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from typing_extensions import override

from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.spark.sinks.delta.delta_table import DeltaFiles, DeltaTableAccess
from airflow_provider_statecheck.spark.sinks.delta_sink import DeltaSink
from airflow_provider_statecheck.spark.sinks.target_files import lineage_of
from airflow_provider_statecheck.testing.faults import FaultPlan
from tests.unit.spark.sinks.attempts import SCHEMA, Attempt
from tests.unit.spark.sinks.history import Job, planned as planned_files

_CALLS = ("snapshot", "create", "commit", "add_columns")


class DeltaAttempt(Attempt):
    """One attempt that owns a Delta sink, until it is thrown away like a process that dies."""

    def __init__(
        self,
        path: str,
        epoch: int,
        *,
        restored: int | None = None,
        generation: int = 1,
        job: str = "balances",
        schema: pa.Schema | None = SCHEMA,
        storage_options: Mapping[str, Any] | None = None,
        restored_epoch: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(
            path,
            epoch,
            restored=restored,
            generation=generation,
            job=job,
            schema=schema,
            storage_options=storage_options,
        )
        self.sink = DeltaSink(path, **settings)
        self.context = replace(self.context, restored_epoch=restored_epoch)

    @property
    @override
    def files(self) -> DeltaFiles:
        lineage = lineage_of(self.context.job_id, self.context.uid)
        return DeltaFiles.open(self.sink.table, lineage, self.context.storage_options)


def delta_job(path: str) -> Job:
    """Return a job whose attempts write to a Delta table."""
    return Job(path, new_attempt=DeltaAttempt)


def table_at(path: str, version: int | None = None) -> DeltaTable:
    """Return the table as any reader opens it."""
    return DeltaTable(path, version=version)


def rows_of(path: str, version: int | None = None) -> pa.Table:
    """Return all rows of a table."""
    if not DeltaTable.is_deltatable(path):
        return SCHEMA.empty_table()
    return pa.table(table_at(path, version).to_pyarrow_table())


def keys_of(path: str, version: int | None = None) -> list[int]:
    """Return the keys that a reader sees."""
    found: list[int] = sorted(rows_of(path, version).column("key").to_pylist())
    return found


def versions_of(path: str) -> list[list[int]]:
    """Return the keys of each version of a table."""
    return [keys_of(path, version) for version in range(table_at(path).version() + 1)]


def log_of(path: str, version: int) -> list[dict[str, Any]]:
    """Return the actions of one version."""
    file = Path(path.removeprefix("file://")) / "_delta_log" / f"{version:020d}.json"
    return [json.loads(line) for line in file.read_text().splitlines()]


@contextmanager
def planned(plan: FaultPlan) -> Iterator[None]:
    """Count the calls of sinks on their storage and on their table, and let one fail."""
    with planned_files(plan), pytest.MonkeyPatch.context() as patch:
        for name in _CALLS:
            patch.setattr(DeltaTableAccess, name, _counted(getattr(DeltaTableAccess, name), name, plan))
        yield


def _counted(method: Callable[..., Any], name: str, plan: FaultPlan) -> Callable[..., Any]:
    def counted(access: DeltaTableAccess, *args: Any) -> Any:
        return plan.carry_out(name, lambda: method(access, *args), StorageError)

    return counted
