"""Attempts and jobs with a sink, which the contract of sinks runs in this process, without Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import pyarrow as pa  # noqa: TID253 - only tests import this module

from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.exceptions import CoordinatorError, CorruptStateError, StorageError
from airflow_provider_statecheck.spark.connectors.sink import Sink, SinkContext, SinkTaskContext, SinkWriter

SCHEMA = pa.schema([("key", pa.int64()), ("name", pa.string())])
"""Arrow schema of the output of the suite."""
Committables = list[dict[str, Any]]
JOB, UID = "balances", "stage/sink"
"""Job and UID of the sink of an attempt."""
POSITIONS = 3
"""Number of positions in the input of a job."""


class SinkAttempt:
    """
    One attempt that owns a sink, until it is dropped like a process that dies.

    :param sink: New sink.
    :param epoch: Epoch of the attempt.
    :param restored: Restored checkpoint, ``None`` for a fresh start.
    :param more: Further fields of the context; the first attempt took the restored checkpoint unless they say
        otherwise.
    """

    def __init__(
        self,
        sink: Sink,
        epoch: int,
        *,
        restored: int | None = None,
        generation: int = 1,
        job: str = JOB,
        schema: pa.Schema | None = SCHEMA,
        **more: Any,
    ) -> None:
        self.sink = sink
        self.epoch = epoch
        self.context = SinkContext(
            **{
                "job_id": job_id_of(job),
                "job_name": job,
                "uid": UID,
                "operator_id": operator_id_of("stage"),
                "epoch": epoch,
                "generation": generation,
                "restored_checkpoint_id": restored,
                "restored_epoch": None if restored is None else 1,
                "is_fresh": restored is None,
                "schema": schema,
                **more,
            }
        )

    def open(self) -> Self:
        """Open the sink."""
        self.sink.open(self.context)
        return self

    def task(self, subtask: int = 0, schema: pa.Schema = SCHEMA) -> SinkWriter:
        """Return the writer of a task."""
        context = SinkTaskContext(subtask=subtask, epoch=self.epoch, task_id=new_key(), schema=schema)
        # As Spark sends the sink to a task.
        return pickle.loads(pickle.dumps(self.sink)).writer(context)  # type: ignore[no-any-return]  # noqa: S301

    def write_table(self, table: pa.Table, subtask: int = 0) -> Committables:
        """Write a table in a task, and return its committables as they return from a checkpoint."""
        writer = self.task(subtask, table.schema)
        try:
            writer.write(table)
            return list(json.loads(json.dumps(writer.prepare_commit())))
        except Exception:
            writer.abort()
            raise

    def write(self, *keys: int, subtask: int = 0, name: str = "name", schema: pa.Schema = SCHEMA) -> Committables:
        """Write rows in a task, and return its committables as they return from a checkpoint."""
        return self.write_table(table_of(keys, schema, name), subtask)

    def commit(self, checkpoint_id: int, committables: Committables) -> None:
        """Commit a checkpoint."""
        self.sink.commit(checkpoint_id, committables)

    def add(self, checkpoint_id: int, *keys: int, name: str = "name") -> Committables:
        """Write rows and commit them."""
        committables = self.write(*keys, name=name)
        self.commit(checkpoint_id, committables)
        return committables

    def finish(self) -> None:
        """Close the sink after a success."""
        self.sink.close(succeeded=True)


def table_of(keys: Sequence[int], schema: pa.Schema = SCHEMA, name: str = "name") -> pa.Table:
    """Return rows with the keys; columns other than ``key`` and ``name`` are null."""
    return pa.Table.from_pylist([{"key": key, "name": f"{name} {key}"} for key in keys], schema)


@dataclass
class SinkJob:
    """
    A job whose attempts may end at any step, and its checkpoints.

    Its input are the positions from 1. Each checkpoint adds the row of one position, written by the first of two tasks.

    :param new_attempt: Function that returns an unopened attempt for an epoch, a restored checkpoint and a generation.
    """

    new_attempt: Callable[..., SinkAttempt]
    epoch: int = 0
    generation: int = 1
    next_id: int = 1
    completed: list[JobCheckpoint] = field(default_factory=list)

    def expected(self) -> list[int]:
        """Return the keys of a successful run of this generation."""
        return [self._key(position) for position in range(1, POSITIONS + 1)]

    def run(self) -> None:
        """Run attempts until one succeeds; start over if the sink refuses the restored checkpoint."""
        for _ in range(5 * POSITIONS):
            try:
                self.attempt()
            except (CorruptStateError, CoordinatorError):
                self.start_over()
            except StorageError:
                continue
            else:
                return
        raise AssertionError("no attempt succeeds")

    def attempt(self, until: int = POSITIONS) -> None:
        """Run one attempt, which may raise what a fault raises."""
        self.epoch += 1
        last = self.completed[-1] if self.completed else None
        restored = {"restored": last.id, "restored_epoch": last.epoch} if last else {}
        attempt = self.new_attempt(self.epoch, generation=self.generation, **restored).open()
        for checkpoint in self.completed:
            self._commit(attempt, checkpoint)
        for position in range((last.position if last else 0) + 1, until + 1):
            self._take(attempt, position)
        if until == POSITIONS:
            attempt.finish()

    def fall_back(self, count: int) -> None:
        """Lose the newest checkpoints."""
        del self.completed[max(0, len(self.completed) - count) :]
        if not self.completed:
            self.start_over()

    def start_over(self) -> None:
        """Begin a new generation."""
        self.completed.clear()
        self.generation += 1

    def _take(self, attempt: SinkAttempt, position: int) -> None:
        written = [*attempt.write(self._key(position)), *attempt.write(subtask=1)]
        checkpoint = JobCheckpoint(self.next_id, self.epoch, position, written)
        self.next_id += 1
        self.completed.append(checkpoint)
        self._commit(attempt, checkpoint)

    def _commit(self, attempt: SinkAttempt, checkpoint: JobCheckpoint) -> None:
        if not checkpoint.is_confirmed:
            attempt.commit(checkpoint.id, checkpoint.committables)
            checkpoint.is_confirmed = True

    def _key(self, position: int) -> int:
        return self.generation * 1000 + position


@dataclass
class JobCheckpoint:
    """A checkpoint of a job, and whether its commit was confirmed."""

    id: int
    epoch: int
    position: int
    committables: Committables
    is_confirmed: bool = False
