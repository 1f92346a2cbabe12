"""The loop of a stage with jobs that give their reports at once, so that no Spark is needed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.checkpoint_interval import Pace
from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink
from airflow_provider_statecheck.spark.connectors.sink import SinkContext, SinkTaskContext
from airflow_provider_statecheck.spark.connectors.source import Increment, Split
from airflow_provider_statecheck.spark.stages.executor.elements import CONTROL
from airflow_provider_statecheck.spark.stages.executor.node_run import StateCapture
from airflow_provider_statecheck.spark.stages.executor.vertex_task import TaskReport
from airflow_provider_statecheck.spark.stages.increment_jobs import Combining
from airflow_provider_statecheck.spark.stages.increment_loop import IncrementLoop
from airflow_provider_statecheck.spark.stages.sink_commits import SinkCommits
from airflow_provider_statecheck.spark.stages.stage_state import RestoredStageState, StageStates
from airflow_provider_statecheck.spark.status_log import StageProgress

Job = Callable[[int, StateCapture], Sequence[TaskReport]]
SCHEMA = pa.schema([("number", pa.int64())])


def open_sink(sink: ParquetSink, attempt: StageAttempt, restored: RestoredStageState) -> None:
    """Open the sink of an attempt as ``StageRun`` does."""
    grant = attempt.grant
    sink.open(
        SinkContext(
            job_id=grant.attempt.job_id,
            job_name=attempt.registration.job_name,
            uid="aggregate/sink",
            operator_id=grant.attempt.operator_id,
            epoch=grant.attempt.epoch,
            generation=grant.generation,
            restored_checkpoint_id=restored.own_checkpoint_id,
            restored_epoch=restored.own_epoch,
            restored_output=restored.output_of(attempt.registration.owner.run_key),
            is_fresh=restored.checkpoint_id is None,
            schema=SCHEMA,
        )
    )


def staged(sink: ParquetSink, attempt: StageAttempt, number: int) -> tuple[dict[str, Any], ...]:
    """Write a row and return the committables of its file."""
    epoch = attempt.grant.attempt.epoch
    writer = sink.writer(SinkTaskContext(subtask=0, epoch=epoch, task_id=new_key(), schema=SCHEMA))
    writer.write(pa.table({"number": [number]}, schema=SCHEMA))
    return tuple(writer.prepare_commit())


def numbers_in(target: Path) -> list[int]:
    """Return what a reader of the sink's directory sees."""
    return sorted(row["number"] for file in target.glob("*.parquet") for row in pq.read_table(file).to_pylist())


def one_output(increment: int, _: StateCapture) -> Sequence[TaskReport]:
    """Return the report of one task that staged its increment's number."""
    return [TaskReport(vertex=0, subtask=0, committables=({"of": increment},), rows=1)]


@dataclass
class RecordedSink:
    """Keeps what was committed; one that is broken commits nothing."""

    commits: list[tuple[int, list[int]]] = field(default_factory=list)
    error: Exception | None = None

    def commit(self, checkpoint_id: int, committables: Sequence[Any]) -> None:
        if self.error is not None:
            raise self.error
        self.commits.append((checkpoint_id, [each["of"] for each in committables]))


@dataclass
class Splits:
    """A source of some splits, one for each increment."""

    total_splits: int
    finished_splits: int = 0
    given: int = 0
    total_bytes: int | None = None
    finished_bytes: int | None = None

    def next_increment(self) -> Increment | None:
        if self.given == self.total_splits:
            return None
        self.given += 1
        return Increment(self.given, (Split(str(self.given)),))

    def load(self, increment: Increment) -> Any:
        return increment.number

    def require_unchanged(self, increment: Increment) -> None:
        """They never change."""

    def finish(self, increment: Increment) -> None:
        self.finished_splits = increment.number

    def snapshot(self) -> dict[str, Any]:
        return {"finished": self.finished_splits}


class _Frame:
    def __init__(self, reports: Sequence[TaskReport]) -> None:
        self._reports = reports

    def collect(self) -> list[dict[str, bytes]]:
        return [{CONTROL: report.encode()} for report in self._reports]


@dataclass
class JobsWithoutSpark:
    """Runs what was prepared, and notes when it was cancelled."""

    cancelled: threading.Event = field(default_factory=threading.Event)

    def collect(self, frame: _Frame) -> list[dict[str, bytes]]:
        return frame.collect()

    def cancel(self) -> None:
        self.cancelled.set()


class _Tasks:
    broadcast = ()
    adds_partials = False
    maps_rows = False
    combining = Combining(None)
    context = SimpleNamespace(now_ms=0)
    columns = SimpleNamespace(encode=lambda: None)

    def __init__(self, job: Job) -> None:
        self.vertices = [_NoFunctions()]
        self.states = StageStates({}, parallelism=1, max_parallelism=1, restored={})
        self._job = job

    def job(self, increment: int, moment: StateCapture, *, is_woken: bool = False) -> _Frame:
        return _Frame(self._job(increment, moment))


@dataclass
class LoopWithoutSpark:
    """Runs increments of one vertex without functions."""

    attempt: StageAttempt
    sink: Any
    job: Job = one_output
    checkpoint_interval: Any = None
    monotonic: Callable[[], float] = time.monotonic
    jobs: Any = field(default_factory=lambda: JobsWithoutSpark())
    finished: int = 0
    """How many increments earlier tries finished."""

    @contextmanager
    def begun(self, increments: int, commits: SinkCommits) -> Iterator[tuple[IncrementLoop, Splits]]:
        """Give a loop that has not run yet."""
        splits = Splits(increments, self.finished, self.finished)
        arguments: tuple[Any, ...] = (
            self.attempt,
            splits,
            _Tasks(self.job),
            self.jobs,
            commits,
            Pace(self.checkpoint_interval, None, self.monotonic),
            StageProgress("stage", increments, restored=0, monotonic=self.monotonic),
            self.monotonic,
        )
        loop = IncrementLoop(*arguments)
        try:
            yield loop, splits
        finally:
            loop.close()

    def run(self, increments: int, commits: SinkCommits | None = None) -> SinkCommits:
        """Run increments to their end."""
        commits = commits or SinkCommits(self.sink, self.attempt)
        with self.begun(increments, commits) as (loop, splits):
            first = splits.next_increment()
            assert first is not None
            loop.run(first, splits.load(first))
        return commits


class _NoFunctions:
    key = None
    ends_without_rows = False
    functions = ()
