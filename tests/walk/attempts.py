"""One attempt of a stage on real rows, files, source and sink, with a few lines of Python in place of Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent
from airflow_provider_statecheck.spark.connectors.files.sink import committed_files
from airflow_provider_statecheck.spark.connectors.sink import SinkTaskContext
from airflow_provider_statecheck.spark.driver.settings import DriverSettings
from airflow_provider_statecheck.spark.stages.endpoints import Endpoints
from airflow_provider_statecheck.spark.stages.stage import Stage
from airflow_provider_statecheck.spark.stages.stage_run import StageRun
from airflow_provider_statecheck.spark.stages.stage_state import SINK, driver_state
from airflow_provider_statecheck.spark.stages.starting import start_of
from airflow_provider_statecheck.state.reading.checkpoint_states import STAGE
from airflow_provider_statecheck.state.source_items import SOURCE

OUTPUT = pa.schema([("id", pa.string()), ("key", pa.string()), ("count", pa.int64())])
Row = tuple[str, str, int]


def local(uri: str) -> Path:
    """Return the path of a local file."""
    return Path(uri.removeprefix("file://"))


def visible_rows(target: Path) -> list[Row]:
    """Return what a reader of the output of a sink sees, in a fixed order."""
    files = committed_files(str(target)) if target.exists() else ()
    rows = (row for file in files for row in pq.ParquetFile(local(file.uri)).read().to_pylist())
    return sorted((row["id"], row["key"], row["count"]) for row in rows)


class CountingAttempt:
    """
    Counts the rows of each key, and writes each row with its count.

    :param attempt: A registered attempt.
    """

    def __init__(self, attempt: StageAttempt, stage: Stage, read: Any) -> None:
        self.attempt = attempt
        self._stage = stage
        self._read = read
        self._run = StageRun(None, attempt, stage)  # type: ignore[arg-type]
        self._endpoints = Endpoints(None, attempt, stage, DriverSettings())  # type: ignore[arg-type]
        self.restored_id: int | None = None
        self.counts: Counter[str] = Counter()
        self._enumerator: Any = None
        self._start: Any = None

    def open_source(self) -> None:
        """Choose the checkpoint to start from and list the input."""
        self._start = start_of(self.attempt, self._stage.input, self._endpoints.open_source)
        self._enumerator, self.restored_id = self._start.enumerator, self._start.state.checkpoint_id
        if self.restored_id is not None:
            assert self._start.loaded is not None
            self.counts = Counter(dict(self._start.loaded.state["counts"]))

    def work(self, is_taken: Any) -> Iterator[tuple[str, Any]]:
        """
        Read the rest of the input; yield before each step that a crash may precede.

        :param is_taken: Returns whether a checkpoint is taken after an increment that is not the last one.
        """
        first = self._enumerator.next_increment()
        with ExitStack() as closing:
            commits = self._run.take_over(closing, self._start, None, OUTPUT if first else None)
            yield "taken over", self.restored_id
            increment = first
            while increment is not None:
                rows = [row for split in increment.splits for row in self._read(split.item.name)]
                following = self._enumerator.next_increment()
                pending = self.attempt.begin_checkpoint(None) if following is None or is_taken() else None
                commits.stage(self._write(rows))
                self._enumerator.require_unchanged(increment)
                self._enumerator.finish(increment)
                yield "read", [split.item.name for split in increment.splits]
                if pending is not None:
                    commits.assign(pending.checkpoint_id)
                    yield "written", None
                    self._complete(pending, commits)
                    yield "completed", pending.checkpoint_id
                    commits.commit(pending.checkpoint_id)
                    yield "committed", None
                increment = following
            commits.end()
        self.attempt.finish(AttemptStatus.FINISHED)

    def _complete(self, pending: Any, commits: Any) -> None:
        uid, run = self.attempt.registration.uid, self.attempt.registration.owner.run_key
        content = CheckpointContent(
            state={
                STAGE: {"checkpoint": pending.checkpoint_id, "run": run, "now_ms": 0},
                "counts": sorted(self.counts.items()),
            },
            operator_states=(
                driver_state(f"{uid}/{SOURCE}", self._enumerator.snapshot()),
                driver_state(f"{uid}/{SINK}", commits.encode()),
            ),
            has_commit=commits.has_open,
            counts={},
        )
        assert self.attempt.complete_checkpoint(pending, content) is not None

    def _write(self, rows: list[tuple[str, str]]) -> list[Any]:
        epoch = self.attempt.grant.attempt.epoch
        sink: Any = self._stage.output
        writer = sink.writer(SinkTaskContext(subtask=0, epoch=epoch, task_id=new_key(), schema=OUTPUT))
        writer.write(pa.Table.from_pylist([self._counted(*row) for row in rows], OUTPUT))
        return list(writer.prepare_commit())

    def _counted(self, name: str, key: str) -> dict[str, Any]:
        self.counts[key] += 1
        return {"id": name, "key": key, "count": self.counts[key]}
