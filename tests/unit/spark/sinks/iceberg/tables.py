"""Iceberg tables in a catalog of SQLite, and attempts of a stage that write to them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog

from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of
from airflow_provider_statecheck.spark.sinks.iceberg.iceberg_ledger import TableLedger, read_ledger
from airflow_provider_statecheck.spark.sinks.iceberg_sink import IcebergSink
from airflow_provider_statecheck.spark.sinks.sink import SinkContext, SinkTaskContext
from airflow_provider_statecheck.spark.sinks.target_files import lineage_of

TABLE = "sales.orders"
SCHEMA = pa.schema([("key", pa.int64()), ("name", pa.string())])

Committables = list[dict[str, Any]]


def properties_in(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


@contextmanager
def opened(folder: Path) -> Iterator[Catalog]:
    catalog = load_catalog(None, **properties_in(folder))
    try:
        yield catalog
    finally:
        catalog.close()


@contextmanager
def table_in(folder: Path) -> Iterator[Any]:
    with opened(folder) as catalog:
        yield catalog.load_table(TABLE)


def create_table(
    folder: Path,
    schema: pa.Schema = SCHEMA,
    partitions: Sequence[tuple[str, Any, str]] = (),
    properties: Mapping[str, str] | None = None,
) -> None:
    folder.mkdir(exist_ok=True)
    with opened(folder) as catalog:
        catalog.create_namespace_if_not_exists("sales")
        table = catalog.create_table(TABLE, schema, properties=dict(properties or {}))
        with table.update_spec() as update:
            for column, transform, name in partitions:
                update.add_field(column, transform, name)


def rows_of(*keys: int, schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist([{"key": key, "name": f"name {key}"} for key in keys], schema)


def append_as_somebody_else(folder: Path, *keys: int) -> None:
    with table_in(folder) as table:
        table.append(rows_of(*keys))


def seen_in(folder: Path) -> list[int]:
    with table_in(folder) as table:
        return sorted(table.scan(selected_fields=("key",)).to_arrow().column("key").to_pylist())


def ledger_in(folder: Path, job: str = "balances") -> TableLedger | None:
    with table_in(folder) as table:
        return read_ledger(table, lineage_of(job_id_of(job), "stage/sink"))


class Attempt:
    """One attempt that owns a sink, until it is thrown away like a process that dies."""

    def __init__(
        self,
        folder: Path,
        epoch: int,
        *,
        restored: int | None = None,
        restored_epoch: int | None = None,
        generation: int = 1,
        job: str = "balances",
        schema: pa.Schema | None = SCHEMA,
        **settings: Any,
    ) -> None:
        self.sink = IcebergSink(TABLE, properties=properties_in(folder), **settings)
        self.epoch = epoch
        self.context = SinkContext(
            job_id=job_id_of(job),
            job_name=job,
            uid="stage/sink",
            operator_id=operator_id_of("stage"),
            epoch=epoch,
            generation=generation,
            restored_checkpoint_id=restored,
            restored_epoch=restored_epoch,
            is_fresh=restored is None,
            schema=schema,
        )

    def open(self) -> Attempt:
        self.sink.open(self.context)
        return self

    def task(self, subtask: int = 0, schema: pa.Schema = SCHEMA) -> Any:
        context = SinkTaskContext(subtask=subtask, epoch=self.epoch, task_id="task", schema=schema)
        # As it reaches a Spark task.
        return pickle.loads(pickle.dumps(self.sink)).writer(context)

    def write(self, *keys: int, subtask: int = 0) -> Committables:
        return self.write_table(rows_of(*keys), subtask)

    def write_table(self, table: pa.Table, subtask: int = 0) -> Committables:
        writer = self.task(subtask, table.schema)
        try:
            writer.write(table)
            # As it comes back from a checkpoint's metadata.
            found: Committables = json.loads(json.dumps(writer.prepare_commit()))
        except Exception:
            writer.abort()
            raise
        return found

    def commit(self, checkpoint_id: int, committables: Sequence[dict[str, Any]]) -> None:
        self.sink.commit(checkpoint_id, committables)

    def add(self, checkpoint_id: int, *keys: int) -> Committables:
        committables = self.write(*keys)
        self.commit(checkpoint_id, committables)
        return committables

    def finish(self) -> None:
        self.sink.close(succeeded=True)

    def die(self) -> None:
        """End as a process ends whose connections the system closes."""
        self.sink.close(succeeded=False)
