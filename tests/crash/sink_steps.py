"""A fault at a step with a name, and a sink whose steps can be told to fail."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.testing.faults import FaultPlan
from tests.crash.stage_pipeline import SharedPlan

if TYPE_CHECKING:
    from airflow_provider_statecheck.spark.connectors.sink import Sink, SinkContext, SinkTaskContext, SinkWriter

PAUSED, RESUME = "paused", "resume"
"""Files by which a driver that waits at a step and the test speak to each other."""
_PAUSE_SECONDS = 180


@dataclass(slots=True)
class StepPlan(SharedPlan):
    """
    Fails at a call by its name.

    :param step: The name of the call.
    :param occurrence: Which one of that name, from 1.
    :param pause_in: Where to wait before the call, in place of failing.
    """

    step: str = ""
    occurrence: int = 1
    pause_in: Path | None = None

    @override
    def carry_out(self, name: str, call: Callable[[], Any], error: type[Exception]) -> Any:
        with self._counting:
            self.calls.append(name)
            is_reached = name == self.step and self.calls.count(name) == self.occurrence
        if not is_reached:
            return call()
        if self.pause_in is not None:
            _wait(self.pause_in)
            return call()
        return self.fail(name, call, error)


def _wait(folder: Path) -> None:
    (folder / PAUSED).touch()
    deadline = time.monotonic() + _PAUSE_SECONDS
    while not (folder / RESUME).exists():
        if time.monotonic() > deadline:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.01)


@dataclass(frozen=True, slots=True)
class WriteKill:
    """
    The end of a driver while one of its tasks writes.

    :param driver: Its process.
    :param number: The row at which it comes.
    :param is_late: Whether the task has staged everything by then, and only not told so.
    """

    driver: int
    number: int
    is_late: bool

    def carry_out(self) -> None:
        """End the driver, unless it has ended."""
        with suppress(ProcessLookupError):
            os.kill(self.driver, signal.SIGKILL)


class SteppedSink:
    """
    Passes everything on to a sink; opening, each commit and closing are steps at which a fault can come.

    :param sink: The sink that is tried.
    :param plan: Counts the steps; it stays on the driver.
    :param kill: What tasks do to the driver.
    """

    def __init__(self, sink: Sink, plan: FaultPlan, kill: WriteKill | None) -> None:
        self._sink = sink
        self._plan: FaultPlan | None = plan
        self._kill = kill

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plan": None}

    def open(self, context: SinkContext) -> None:
        """Open the sink."""
        self._step("open", lambda: self._sink.open(context))

    def writer(self, context: SinkTaskContext) -> SinkWriter:
        """Return a writer that ends the driver where that is planned."""
        writer = self._sink.writer(context)
        return writer if self._kill is None else _KillingWriter(writer, self._kill)

    def commit(self, checkpoint_id: int, committables: Sequence[Mapping[str, Any]]) -> None:
        """Commit."""
        self._step("commit", lambda: self._sink.commit(checkpoint_id, committables))

    def close(self, succeeded: bool) -> None:
        """Close the sink."""
        self._step("close", lambda: self._sink.close(succeeded))

    def _step(self, name: str, call: Callable[[], None]) -> None:
        assert self._plan is not None
        self._plan.carry_out(name, call, StorageError)


class _KillingWriter:
    def __init__(self, writer: SinkWriter, kill: WriteKill) -> None:
        self._writer = writer
        self._kill = kill
        self._is_near = False

    def write(self, table: Any) -> None:
        is_there = self._kill.number in table.column("number").to_pylist()
        self._is_near = self._is_near or is_there
        self._writer.write(table)
        if is_there and not self._kill.is_late:
            self._kill.carry_out()

    def prepare_commit(self) -> list[dict[str, Any]]:
        committables = self._writer.prepare_commit()
        if self._is_near and self._kill.is_late:
            self._kill.carry_out()
        return committables

    def abort(self) -> None:
        self._writer.abort()
