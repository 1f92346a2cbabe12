"""
Spark jobs of the parts of a step.

A part is one job that writes a snapshot of its own. Two parts run at a time, so that no core idles while the last tasks
of one end. Only the main thread changes the progress and takes checkpoints.
"""

from __future__ import annotations

import functools
import logging
import math
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_provider_statecheck.exceptions import (
    InvalidConfigurationError,
    PartFailedError,
    StaleAttemptError,
    StateCheckError,
    StoppedWithSavepointError,
)
from airflow_provider_statecheck.spark.connectors.enumerator import ItemEnumerator, Pieces
from airflow_provider_statecheck.spark.connectors.source import Increment, SizeUnit
from airflow_provider_statecheck.spark.driver.session import TaggedJobs, cores_of, is_server_lost
from airflow_provider_statecheck.spark.parts.part_sizes import PartSizes
from airflow_provider_statecheck.spark.parts.row_wise_plan import marked, require_row_wise
from airflow_provider_statecheck.spark.snapshots.columns import parse_schema
from airflow_provider_statecheck.spark.snapshots.live_snapshots import LiveSnapshot
from airflow_provider_statecheck.spark.stage_costs import disk_failures_named
from airflow_provider_statecheck.spark.status_log import StageProgress
from airflow_provider_statecheck.spark.steps import StageSteps, built
from airflow_provider_statecheck.spark.tables.alignment import aligned, differences_of
from airflow_provider_statecheck.spark.versions import inheriting
from airflow_provider_statecheck.state.progress import BadPart, PartedStep, StepKey, describe

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

AT_ONCE = 2
_SHOWN_CHARACTERS, _SHOWN_PARTS = 300, 5
_CANCELLED = re.compile(r"SPARK_JOB_CANCELLED|OPERATION_CANCELED")
_PYTHON_ERROR = re.compile(r"[\w.]*(Error|Exception)\b.*")
_LOST_JVM = ("Py4JNetworkError", "ConnectionRefusedError")


class PartBuilder:
    """
    Applies the function of a step to parts of its input, after its plan was judged once.

    :param restored: Parts that earlier attempts have computed.
    """

    def __init__(self, build: Callable[[DataFrame], DataFrame], step: str, restored: Iterable[LiveSnapshot]) -> None:
        self._build = build
        self._step = step
        self._restored = tuple(restored)
        self._schema: StructType | None = None

    def frame(self, rows: DataFrame) -> DataFrame:
        """
        Return the result for a part.

        :param rows: Rows of the input.
        :raises UnsupportedPlanError: if the function does not work row by row.
        :raises InvalidConfigurationError: if its columns differ from those of another part.
        """
        if self._schema is None:
            self._schema = self._judged(rows)
        frame = built(functools.partial(self._build, rows))
        differences = differences_of(self._schema, frame.schema, rows.sparkSession)
        if differences:
            raise InvalidConfigurationError(
                f"Expected the same columns of all parts of step {self._step}, found {'; '.join(differences)}; let the "
                "function return columns that do not depend on the rows."
            )
        return aligned(frame, self._schema)

    def _judged(self, rows: DataFrame) -> StructType:
        over, marker = marked(rows)
        judged = built(functools.partial(self._build, over))
        require_row_wise(judged, marker, self._step)
        for live in self._restored:
            saved = parse_schema(live.manifest.schema_json)
            differences = differences_of(saved, judged.schema, rows.sparkSession)
            if differences:
                raise InvalidConfigurationError(
                    f"Expected the columns of the parts of step {self._step} that an earlier attempt has computed, "
                    f"found {'; '.join(differences)}; set version to compute all parts again."
                )
        # Parts are read as one table: all of them have the columns in the order of those that are there.
        return parse_schema(self._restored[0].manifest.schema_json) if self._restored else judged.schema


@dataclass(frozen=True, slots=True)
class _Part:
    increment: Increment
    pieces: Pieces
    amount: int


class PartJobs:
    """
    Runs the jobs of the parts that are left.

    :param fails_at_once: Whether a part that fails ends the step; else the other parts are computed first.
    """

    def __init__(
        self,
        steps: StageSteps,
        step: StepKey,
        enumerator: ItemEnumerator,
        builder: PartBuilder,
        start: PartedStep,
        *,
        fails_at_once: bool,
    ) -> None:
        self._steps = steps
        self._snapshots = steps.snapshots
        self._step = step
        self._name = describe(step)
        self._enumerator = enumerator
        self._builder = builder
        self._fails_at_once = fails_at_once
        self._jobs = TaggedJobs(steps.spark)
        self._is_stopped = threading.Event()
        self._running: dict[Future[LiveSnapshot], _Part] = {}
        self._clock = steps.stopwatch()
        self._finished_at = 0.0
        self._unit = SizeUnit.of(enumerator)
        self._sizes = PartSizes(
            self._unit.left, is_bytes=self._unit.is_bytes, interval_seconds=self._steps.pace.interval_seconds
        )
        self._least = cores_of(steps.spark)
        self.progress = StageProgress(
            self._name, self._unit.total, restored=self._unit.finished, monotonic=self._clock, kind="Step"
        )
        self._is_unsaved = False
        self._saved_share = start.share
        self.parted = start
        """Progress of the step."""
        self.write_seconds = 0.0
        """Estimated time of the writes in this attempt."""
        self.first_error: Exception | None = None
        """Error of the first part that failed."""
        self._record(start)

    def run(self) -> None:
        """
        Compute all parts that are left, and take checkpoints of the finished ones.

        :raises PartFailedError: if a part failed and ends the step; the finished parts are saved.
        :raises StaleAttemptError: if a newer attempt has taken over.
        """
        with self._workers() as start:
            self._fill(start)
            while self._running:
                done, _ = wait(self._running, return_when=FIRST_COMPLETED)
                for future in done:
                    self._take(future)
                self._fill(start)
                # The last checkpoint is that of the finished step.
                if self._running:
                    self._save_if_due()

    def write_empty(self, frame: DataFrame) -> None:
        """Write the result for an input without rows as one part."""
        part = _Part(Increment(1, ()), [], 0)
        self._finished(part, self._write(part, self._builder.frame(frame)))

    def save(self, *, is_end: bool = False) -> None:
        """
        Take a checkpoint of the finished parts if there are new ones.

        :param is_end: Whether to take it in any case.
        """
        if (self._is_unsaved or is_end) and self._steps.checkpoint() is not None:
            self._is_unsaved = False
            self._saved_share = self.parted.share

    def _save_if_due(self) -> None:
        if not self._steps.pace.allows():
            return
        if self._steps.costs.allow():
            self.save()
        else:
            self._steps.costs.put_off += 1

    def _fill(self, start: Callable[[_Part, DataFrame], None]) -> None:
        while len(self._running) < AT_ONCE:
            self._enumerator.size_increments(self._sizes.amount, self._least)
            increment = self._enumerator.next_increment()
            if increment is None:
                return
            pieces = self._enumerator.encode(increment)
            part = _Part(increment, pieces, self._unit.amount_of(increment))
            start(part, self._builder.frame(self._enumerator.load(increment)))

    @contextmanager
    def _workers(self) -> Iterator[Callable[[_Part, DataFrame], None]]:
        pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="statecheck-part")
        try:
            yield functools.partial(self._start, pool)
        except (StaleAttemptError, StoppedWithSavepointError):
            raise
        except Exception:
            self._stop()
            raise
        finally:
            self._cancel()
            pool.shutdown(wait=True)

    def _start(self, pool: ThreadPoolExecutor, part: _Part, frame: DataFrame) -> None:
        # Jobs inherit the properties of this thread, such as its scheduler pool. Each one gets a copy of its own,
        # because the tag of a job is one of them.
        write = inheriting(functools.partial(self._write, part, frame), self._steps.spark)
        self._running[pool.submit(write)] = part

    def _write(self, part: _Part, frame: DataFrame) -> LiveSnapshot:
        if self._is_stopped.is_set():
            raise PartFailedError(f"Expected step {self._name} to run, found that it was stopped.")
        with self._jobs.tagged(), disk_failures_named(self._snapshots.storage.base_uri):
            live = self._snapshots.write_part(self._step, part.increment.number, frame, self.parted.fingerprint)
        self._enumerator.require_unchanged(part.increment)
        return live

    def _take(self, future: Future[LiveSnapshot]) -> None:
        part = self._running.pop(future)
        try:
            live = future.result()
        except StateCheckError:
            raise
        except Exception as error:
            self._failed(part, error)
            return
        self._finished(part, live)

    def _finished(self, part: _Part, live: LiveSnapshot) -> None:
        now = self._clock()
        wall, self._finished_at = now - self._finished_at, now
        added = self._snapshots.add_part(live, wall)
        if part.pieces:
            self._enumerator.finish(part.increment)
        # What a source has observed while it read, such as versions of rows, is compared at the next attempt.
        listed = {**self.parted.listed, "reader": self._enumerator.snapshot()["reader"]}
        parted = self.parted.with_part(part.increment.number, part.pieces, self._enumerator.finished_share)
        self._record(replace(parted, listed=listed))
        self.write_seconds += self._steps.count_part(self._step, added, wall)
        self._sizes.observe(part.amount, wall)
        self._is_unsaved = True
        self.progress.advance(part.amount, live.handle.rows or 0, details=self._details())

    def _details(self) -> tuple[str, str]:
        number = len(self.parted.finished)
        return f"{number} {'part' if number == 1 else 'parts'}", f"{math.floor(100 * self._saved_share)} % kept"

    def _failed(self, part: _Part, error: Exception) -> None:
        if _CANCELLED.search(str(error)) or is_server_lost(error) or type(error).__name__ in _LOST_JVM:
            raise error
        bad = BadPart(self._enumerator.describe(part.increment), _first_line(error))
        if self._fails_at_once:
            raise failure_of(self._name, (bad,), self.parted.share) from error
        log.error("A part of step %s failed and is left to the next try: %s", self._name, bad_text(bad), exc_info=error)
        self.first_error = self.first_error or error
        self._record(replace(self.parted, bad=(*self.parted.bad, bad)))
        self._is_unsaved = True

    def _stop(self) -> None:
        """Cancel what runs, and save what is finished."""
        self._cancel()
        wait(self._running)
        for future, part in self._running.items():
            if future.exception() is None:
                self._finished(part, future.result())
        self._running.clear()
        try:
            self.save()
        except (StaleAttemptError, StoppedWithSavepointError):
            raise
        except StateCheckError as error:
            # This error must not hide the one that stops the step.
            log.warning("The finished parts of step %s could not be saved: %s", self._name, error)

    def _cancel(self) -> None:
        if not self._running:
            return
        self._is_stopped.set()
        try:
            self._jobs.cancel()
        except Exception as error:
            # The session may have ended, and its jobs with it.
            log.debug("The parts of step %s could not be cancelled: %s", self._name, error)

    def _record(self, parted: PartedStep) -> None:
        self.parted = parted
        self._steps.parts.record(self._step, parted)


def failure_of(step: str, bad: tuple[BadPart, ...], share: float) -> PartFailedError:
    """Return the error of a step with failed parts; ``share`` is the finished part of its input."""
    texts = "; ".join(map(bad_text, bad[:_SHOWN_PARTS]))
    more = f" and {len(bad) - _SHOWN_PARTS} more" if len(bad) > _SHOWN_PARTS else ""
    return PartFailedError(
        f"Expected all parts of step {step} to be computed, found {len(bad)} that failed: {texts}{more}. The finished "
        f"parts, {math.floor(100 * share)} % of the input, are kept; correct the input or the function, then retry.",
        step=step,
        parts=tuple(each.input for each in bad),
    )


def bad_text(bad: BadPart) -> str:
    """Return the input and the error of a failed part."""
    return f"{', '.join(bad.input)}: {bad.error}"


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Python's own error is the last line of a traceback in a Spark error.
    python = [line for line in lines if _PYTHON_ERROR.match(line)]
    text = python[-1] if python else lines[0] if lines else type(error).__name__
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
