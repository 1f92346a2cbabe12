"""Functions and sinks whose first Spark attempts do not live to be counted, though they have written."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.exactly_once.target_files import ParquetSinkWriter
from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink
from airflow_provider_statecheck.spark.connectors.sink import SinkTaskContext
from tests.spark.stages.functions import RunningBalance

LIMIT_SECONDS = 60


def is_first_attempt() -> bool:
    """Tell whether Spark runs this task for the first time."""
    context = TaskContext.get()
    return context is not None and context.attemptNumber() == 0


class FailingInFirstAttempt(RunningBalance):
    """
    Fails in the midst of each task, when Spark runs it for the first time.

    :param way: ``raise``, or ``exit`` for the end of the process.
    """

    def __init__(self, way: str) -> None:
        self.way = way

    @override
    def process_element(self, value: Any, context: Any) -> Iterable[Any]:
        if value.number % 50 == 37 and is_first_attempt():
            end(self.way)
        yield from super().process_element(value, context)


def end(way: str) -> None:
    """Raise, or end the process."""
    if way == "exit":
        os._exit(1)
    raise RuntimeError("planned")


def state_files(checkpoints: Path) -> list[Path]:
    """Return the state files of functions, shared and of single checkpoints."""
    return [*checkpoints.glob("*/shared/*/state/*"), *checkpoints.glob("*/chk-*/[0-9]*-*")]


@dataclass(frozen=True)
class Traces:
    """
    What tasks note of what they have written.

    :param folder: Where notes are.
    :param checkpoints: The directory of the checkpoints.
    """

    folder: Path
    checkpoints: Path

    def note(self, kind: str, subtask: int, committables: Iterable[dict[str, Any]]) -> None:
        """Note the staged output of a task, and all state files so far."""
        staged = [file["name"].rpartition("/")[2] for each in committables for file in each["files"]]
        state = [str(path) for path in state_files(self.checkpoints)]
        host = os.environ.get("SPARK_LOCAL_IP", "")
        name = f"{kind}-{time.time_ns()}"
        (self.folder / f".{name}").write_text(json.dumps({"host": host, "staged": staged, "state": state}))
        (self.folder / f".{name}").rename(self.folder / name)

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the notes of a kind."""
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob(f"{kind}-*"))]


class FailingSink(ParquetSink):
    """Fails in the first attempt of each task, when all its state and output is written."""

    def __init__(self, path: str, traces: Traces, way: str) -> None:
        super().__init__(path)
        self.traces = traces
        self.way = way

    @override
    def writer(self, context: SinkTaskContext) -> Any:
        return FailingWriter(super().writer(context), context, self.traces, self.way)


class LingeringSink(ParquetSink):
    """Lets the first attempt of the first subtask wait, with everything written, until its copy has written too."""

    def __init__(self, path: str, traces: Traces) -> None:
        super().__init__(path)
        self.traces = traces

    @override
    def writer(self, context: SinkTaskContext) -> Any:
        return LingeringWriter(super().writer(context), context, self.traces)


class _Writer:
    def __init__(self, writer: ParquetSinkWriter, context: SinkTaskContext, traces: Traces) -> None:
        self._writer = writer
        self._subtask = context.subtask
        self._traces = traces

    def write(self, table: Any) -> None:
        """Take a table."""
        self._writer.write(table)

    def abort(self) -> None:
        """Delete what was written."""
        self._writer.abort()


class FailingWriter(_Writer):
    """The writer of a :class:`FailingSink`."""

    def __init__(self, writer: ParquetSinkWriter, context: SinkTaskContext, traces: Traces, way: str) -> None:
        super().__init__(writer, context, traces)
        self._way = way

    def prepare_commit(self) -> list[dict[str, Any]]:
        """Finish all files, and fail for the first time."""
        committables = self._writer.prepare_commit()
        if is_first_attempt():
            self._traces.note("failed", self._subtask, committables)
            end(self._way)
        return committables


class LingeringWriter(_Writer):
    """The writer of a :class:`LingeringSink`."""

    def prepare_commit(self) -> list[dict[str, Any]]:
        """Finish all files, and wait where that is asked for."""
        committables = self._writer.prepare_commit()
        if self._subtask == 0 and not is_first_attempt():
            self._traces.note("won", self._subtask, committables)
        if self._subtask == 0 and is_first_attempt() and not self._traces.of("lost"):
            self._traces.note("lost", self._subtask, committables)
            self._linger()
        return committables

    def _linger(self) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not self._traces.of("won") and time.monotonic() < deadline:
            time.sleep(0.1)
        # Spark ends this attempt as soon as it has heard of the other; it may only go on if it never does.
        time.sleep(LIMIT_SECONDS)
