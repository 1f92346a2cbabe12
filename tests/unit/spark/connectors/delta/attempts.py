"""Attempts with a Delta sink, and the output that readers of its table see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from airflow_provider_statecheck.spark.connectors.delta.sink import DeltaSink
from airflow_provider_statecheck.testing.sink_contract import SCHEMA
from tests.unit.spark.connectors.attempts import Attempt


class DeltaAttempt(Attempt):
    """An attempt with a Delta sink."""

    sink: DeltaSink
    sink_type = DeltaSink


def table_at(path: str, version: int | None = None) -> DeltaTable:
    """Return the table as any reader opens it."""
    return DeltaTable(path, version=version)


def rows_of(path: str, version: int | None = None) -> pa.Table:
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


def log_of(path: str, version: int | None = None) -> list[dict[str, Any]]:
    """Return the actions of one version, by default of the newest one."""
    number = table_at(path).version() if version is None else version
    file = Path(path.removeprefix("file://")) / "_delta_log" / f"{number:020d}.json"
    return [json.loads(line) for line in file.read_text().splitlines()]


def added_in(path: str, version: int | None = None) -> list[dict[str, Any]]:
    """Return the files that one version adds, by default the newest one."""
    return [action["add"] for action in log_of(path, version) if "add" in action]


def orphans_in(path: str) -> list[str]:
    """Return the files of sinks that no version of a table has shown, and the logs of sinks that are not in force."""
    root = Path(path.removeprefix("file://"))
    shown = {add["path"] for version in range(table_at(path).version() + 1) for add in added_in(path, version)}
    data = {str(file.relative_to(root)) for file in root.glob("statecheck-*/**/*.parquet")}
    logs = {file.name for lineage in root.glob("_statecheck/*") for file in sorted(lineage.glob("logs/*"))[:-1]}
    staged = {file.name for file in root.glob("_statecheck/*/staging/*")}
    return sorted((data - shown) | logs | staged)
