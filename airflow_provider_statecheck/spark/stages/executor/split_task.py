"""One Spark task of a job over many increments, which commits the state of each part of its input."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

from airflow_provider_statecheck.checkpoint.codec import decode, encode
from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.exceptions import CoordinatorError
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.spark.stages.executor.elements import CONTROL
from airflow_provider_statecheck.spark.stages.executor.node_run import NodeTask, StateCapture, SubtaskContext
from airflow_provider_statecheck.spark.stages.executor.split_input import Rows, SplitInput, partition_number
from airflow_provider_statecheck.spark.stages.executor.vertex_task import (
    FunctionChain,
    TaskReport,
    VertexTask,
    saved_state,
    worker_view,
)
from airflow_provider_statecheck.state.functions.task_owned import TaskOwnedState
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.checkpoint_storages import OperatorDirectories
from airflow_provider_statecheck.storage.views.state_files import CheckpointStorageWorkerView

RECORD_SUFFIX = ".json"
"""End of the name of a record; a file that is being written has another name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitReport:
    """Record of one part of the input, such as a partition, whose state a task has written."""

    part: int
    increment: int | None
    """Number of its increment in the job; ``None`` for a part without rows."""
    report: TaskReport

    def encode(self) -> bytes:
        """Return the record as JSON."""
        return json.dumps(encode(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a record."""
        return decode(cls, json.loads(data))


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitTask:
    """
    Adds the partial results of each part to state of its own, which has keys of all key groups, and commits it.

    The record is written after the state that it refers to, under a name of the task's own.
    """

    function: NodeTask
    """Function that reads no earlier state."""
    storage: CheckpointStorage
    attempt: AttemptRef
    config: CheckpointConfig
    """Settings of the checkpoint storage."""
    moment: StateCapture
    context: SubtaskContext
    """That of a single subtask."""
    records: str
    """Directory of the records."""
    input: SplitInput
    results: Mapping[str, str | None]
    """Column with the partial results of each aggregate; ``None`` if each row counts as one."""

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Run the task; yield its records for the driver."""
        for part, rows in self.input.parts(batches):
            yield committed(self.storage, self.records, self._saved(part, rows))

    def _saved(self, part: int, found: Rows) -> SplitReport:
        own = TaskOwnedState(self._view, self.storage, OperatorDirectories(self.storage, self.attempt).taskowned)
        increments: set[int] = set()
        rows = 0
        with ExitStack() as closing:
            chain = FunctionChain([self.function], self.context, self.storage, own)
            closing.callback(chain.close)
            chain.open()
            for of_table, table in found:
                increments |= of_table
                rows += table.num_rows
                _require_one(increments)
                chain.add(self._with_results(table))
            report = saved_state(chain, self._view, self.moment, vertex=0, subtask=0, rows=rows)
        return SplitReport(part=part, increment=next(iter(increments), None), report=report)

    def _with_results(self, table: Any) -> Any:
        """Return rows with a column for each aggregate."""
        for name, column in self.results.items():
            if column is None:
                one = pa.scalar(1, self.function.output_schema.field(name).type)
                table = table.append_column(name, pa.repeat(one, table.num_rows))
            elif column != name:
                table = table.append_column(name, table.column(column))
        return table

    @property
    def _view(self) -> CheckpointStorageWorkerView:
        return worker_view(self.storage, self.attempt, self.config, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWiseSplitTask:
    """Runs functions without state over a partition of rows that Spark reads, and commits their output."""

    task: VertexTask
    """The functions and the sink."""
    records: str
    """Directory of the records."""

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Run the task; yield its record for the driver."""
        increments: set[int] = set()
        *_, message = self.task(_without_increments(batches, increments))
        report = TaskReport.decode(message.column(CONTROL)[-1].as_py())
        found = SplitReport(part=partition_number(), increment=next(iter(increments), None), report=report)
        yield committed(self.task.storage, self.records, found)


def _without_increments(batches: Iterator[Any], found: set[int]) -> Iterator[Any]:
    """Yield rows without their last column, whose values are added to a set."""
    for batch in batches:
        found |= set(batch.column(batch.num_columns - 1).unique().to_pylist())
        _require_one(found)
        yield batch.select(range(batch.num_columns - 1))


def record_schema() -> Any:
    """Return the Arrow schema of the records that a job returns."""
    return pa.schema([pa.field(CONTROL, pa.binary())])


def committed(storage: CheckpointStorage, records: str, found: SplitReport) -> Any:
    """Commit a part by its record, and return that for the driver, as a record batch."""
    record = found.encode()
    storage.write_bytes(f"{records}/{uuid.uuid4().hex}{RECORD_SUFFIX}", record)
    return pa.RecordBatch.from_arrays([pa.array([record], pa.binary())], schema=record_schema())


def _require_one(increments: set[int]) -> None:
    if len(increments) > 1:
        raise CoordinatorError(
            f"Expected the rows of one increment in a partition, found those of {len(increments)}; turn off the Spark "
            "settings that merge partitions, such as spark.sql.unionOutputPartitioning."
        )
