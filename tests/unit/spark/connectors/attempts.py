"""Attempts with a Parquet sink, and the output that readers of its target see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from airflow_provider_statecheck.spark.connectors.exactly_once.target_files import TargetFiles
from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink, committed_files
from airflow_provider_statecheck.spark.connectors.sink import SinkContext
from airflow_provider_statecheck.testing.sink_contract import SCHEMA, SinkAttempt

_OF_ATTEMPTS = {"restored", "job", *(field.name for field in fields(SinkContext))}


def take_settings(arguments: dict[str, Any]) -> dict[str, Any]:
    """Take the settings of a sink out of the arguments of its attempt."""
    return {name: arguments.pop(name) for name in arguments.keys() - _OF_ATTEMPTS}


class Attempt(SinkAttempt):
    """An attempt with a Parquet sink."""

    sink_type: Any = ParquetSink

    def __init__(self, path: str, epoch: int, **arguments: Any) -> None:
        super().__init__(self.sink_type(path, **take_settings(arguments)), epoch, **arguments)
        self.path = path

    @property
    def files(self) -> TargetFiles:
        return TargetFiles.open(self.path, self.context.lineage, self.context.storage_options)


def seen_in(path: str, options: Mapping[str, Any] | None = None) -> list[int]:
    """Return the keys that a reader of the directory sees."""
    filesystem, root = fsspec.url_to_fs(path, **(options or {}))
    if not filesystem.exists(root):
        return []
    found = ds.dataset(root, filesystem=filesystem, format="parquet", partitioning="hive", schema=SCHEMA)
    return sorted(found.to_table(columns=["key"]).column("key").to_pylist())


def committed_in(path: str, options: Mapping[str, Any] | None = None) -> list[int]:
    """Return the keys that a reader of the ledger sees."""
    keys: list[int] = []
    for file in committed_files(path, storage_options=options or {}):
        filesystem, name = fsspec.url_to_fs(file.uri, **(options or {}))
        with filesystem.open(name, "rb") as opened:
            found = pq.ParquetFile(opened).read(columns=["key"]).column("key").to_pylist()
        assert len(found) == file.rows
        keys += found
    return sorted(keys)


def hidden_in(path: str, kind: str) -> list[str]:
    """Return the files of one kind below the ledgers of a target."""
    filesystem, root = fsspec.url_to_fs(path)
    found = filesystem.find(f"{root}/_statecheck") if filesystem.exists(f"{root}/_statecheck") else []
    return sorted(name.rpartition("/")[2] for name in found if f"/{kind}/" in name)


def schema_with(**columns: pa.DataType) -> pa.Schema:
    """Return the schema of the attempts with other or more columns."""
    fields = {**{field.name: field.type for field in SCHEMA}, **columns}
    return pa.schema(list(fields.items()))
