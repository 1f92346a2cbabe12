"""Attempts of a stage as any sink sees them."""

from __future__ import annotations

import json
import pickle
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of
from airflow_provider_statecheck.spark.sinks.sink import Sink, SinkContext, SinkTaskContext

SCHEMA = pa.schema([("key", pa.int64()), ("name", pa.string())])

Committables = list[dict[str, Any]]


def table_of(keys: Sequence[int], name: str = "name") -> pa.Table:
    return pa.Table.from_pylist([{"key": key, "name": f"{name} {key}"} for key in keys], SCHEMA)


def context_of(
    epoch: int,
    *,
    restored: int | None = None,
    restored_epoch: int | None = None,
    generation: int = 1,
    job: str = "balances",
    schema: pa.Schema | None = SCHEMA,
) -> SinkContext:
    return SinkContext(
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


class Attempt:
    """
    One attempt that owns a sink, until it is thrown away like a process that dies.

    :param make: Makes the sink.
    """

    def __init__(self, make: Callable[[], Sink], epoch: int, **context: Any) -> None:
        self.sink = make()
        self.context = context_of(epoch, **context)

    def open(self) -> Attempt:
        self.sink.open(self.context)
        return self

    def task(self, subtask: int = 0, schema: pa.Schema = SCHEMA) -> Any:
        context = SinkTaskContext(subtask=subtask, epoch=self.context.epoch, task_id=uuid.uuid4().hex, schema=schema)
        # As it reaches a Spark task.
        return pickle.loads(pickle.dumps(self.sink)).writer(context)

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

    def write(self, *keys: int, subtask: int = 0, name: str = "name") -> Committables:
        return self.write_table(table_of(keys, name), subtask)

    def commit(self, checkpoint_id: int, committables: Committables) -> None:
        self.sink.commit(checkpoint_id, committables)

    def add(self, checkpoint_id: int, *keys: int, name: str = "name") -> Committables:
        committables = self.write(*keys, name=name)
        self.commit(checkpoint_id, committables)
        return committables

    def finish(self) -> None:
        self.sink.close(succeeded=True)
