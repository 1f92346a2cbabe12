"""Attempts of a stage as a sink sees them, and what readers of its target see."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.dataset as ds

from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of
from airflow_provider_statecheck.spark.sinks.parquet_sink import ParquetSink
from airflow_provider_statecheck.spark.sinks.read_committed import committed_files
from airflow_provider_statecheck.spark.sinks.sink import SinkContext, SinkTaskContext
from airflow_provider_statecheck.spark.sinks.target_files import TargetFiles, lineage_of

SCHEMA = pa.schema([("key", pa.int64()), ("name", pa.string())])

Committables = list[dict[str, Any]]


def table_of(keys: Sequence[int], schema: pa.Schema = SCHEMA) -> pa.Table:
    rows = [{"key": key, "name": f"name {key}"} for key in keys]
    return pa.Table.from_pylist(rows, schema)


class Attempt:
    """One attempt that owns a sink, until it is thrown away like a process that dies."""

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
        **settings: Any,
    ) -> None:
        self.sink: Any = ParquetSink(path, **settings)
        self.epoch = epoch
        self.schema = schema
        self.context = SinkContext(
            job_id=job_id_of(job),
            job_name=job,
            uid="stage/sink",
            operator_id=operator_id_of("stage"),
            epoch=epoch,
            generation=generation,
            restored_checkpoint_id=restored,
            is_fresh=restored is None,
            storage_options=storage_options or {},
            schema=schema,
        )

    def open(self) -> Attempt:
        self.sink.open(self.context)
        return self

    @property
    def files(self) -> TargetFiles:
        lineage = lineage_of(self.context.job_id, self.context.uid)
        return TargetFiles.open(self.sink.path, lineage, self.context.storage_options)

    def task(self, subtask: int = 0, schema: pa.Schema = SCHEMA) -> Any:
        context = SinkTaskContext(subtask=subtask, epoch=self.epoch, task_id="task", schema=schema)
        # As it reaches a Spark task.
        return pickle.loads(pickle.dumps(self.sink)).writer(context)

    def write(self, *keys: int, subtask: int = 0, schema: pa.Schema = SCHEMA) -> Committables:
        writer = self.task(subtask, schema)
        try:
            writer.write(table_of(keys, schema))
            # As it comes back from a checkpoint's metadata.
            found: Committables = json.loads(json.dumps(writer.prepare_commit()))
        except Exception:
            writer.abort()
            raise
        return found

    def commit(self, checkpoint_id: int, committables: Committables) -> None:
        self.sink.commit(checkpoint_id, committables)

    def add(self, checkpoint_id: int, *keys: int) -> Committables:
        committables = self.write(*keys)
        self.commit(checkpoint_id, committables)
        return committables

    def finish(self) -> None:
        self.sink.close(succeeded=True)


def seen_in(path: str, options: Mapping[str, Any] | None = None) -> list[int]:
    """Return the keys that a reader of the directory sees."""
    filesystem, root = fsspec.url_to_fs(path, **(options or {}))
    if not filesystem.exists(root):
        return []
    found = ds.dataset(root, filesystem=filesystem, format="parquet", partitioning="hive", schema=SCHEMA)
    return sorted(found.to_table(columns=["key"]).column("key").to_pylist())


def committed_in(path: str, options: Mapping[str, Any] | None = None) -> list[int]:
    """Return the keys that a reader of the ledger sees."""
    import pyarrow.parquet as pq

    keys: list[int] = []
    for file in committed_files(path, storage_options=options or {}):
        filesystem, name = fsspec.url_to_fs(file.uri, **(options or {}))
        with filesystem.open(name, "rb") as opened:
            found = pq.ParquetFile(opened).read(columns=["key"]).column("key").to_pylist()
        assert len(found) == file.rows
        keys += found
    return sorted(keys)


def hidden_in(path: str, step: str) -> list[str]:
    """Return the files of one kind that the ledgers of a target hold."""
    filesystem, root = fsspec.url_to_fs(path)
    found = filesystem.find(f"{root}/_statecheck") if filesystem.exists(f"{root}/_statecheck") else []
    return sorted(name.rpartition("/")[2] for name in found if f"/{step}/" in name)
