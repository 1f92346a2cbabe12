"""
Snapshots with ``when="auto"``, which are written only where they pay.

The step is computed into Spark's cache and timed. It is written if a retry would save more time than the write costs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_statecheck.spark.explained_plans import cached_size, explained_with_costs
from airflow_provider_statecheck.spark.snapshots.live_snapshots import Stopwatch
from airflow_provider_statecheck.spark.stage_costs import AutoFact
from airflow_provider_statecheck.spark.steps import StageSteps, built
from airflow_provider_statecheck.state.progress import Scope, StepKey, describe

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


log = logging.getLogger(__name__)

COMPUTE_PER_WRITE = 2.0
"""
Least ratio of the time to compute a step to the time to write it.

A written step is read at least once, which takes about as long as the write, even if nothing fails.
"""


class AutoSnapshots:
    """Writes or caches steps with ``when="auto"``."""

    def __init__(self, steps: StageSteps) -> None:
        self._steps = steps
        self._cached: dict[StepKey, DataFrame] = {}
        # A later step may depend on unwritten ones; a retry would recompute them with it.
        self._unwritten_seconds = 0.0

    def take(self, step: StepKey, build: DataFrame | Callable[[], DataFrame], fingerprint: str) -> DataFrame:
        """
        Compute a step without a snapshot and return it from a new snapshot or from Spark's cache.

        :raises UnsupportedStateError: if the step is written and cannot be restored unchanged.
        """
        with self._steps.working_on(step):
            return self._take(step, build, fingerprint)

    def _take(self, step: StepKey, build: DataFrame | Callable[[], DataFrame], fingerprint: str) -> DataFrame:
        measured = self._steps.auto_facts.measured(step, fingerprint)
        decision = None if measured is None else self._decide(step, measured)
        if measured is not None and decision is not None and not decision.is_written:
            self._log(step, decision, "measured by an earlier attempt")
            self._skip(step, measured)
            return self._cache(step, built(build))
        stopwatch = self._steps.stopwatch()
        frame = self._cache(step, built(build))
        fact = self._measure(step, frame, fingerprint, stopwatch)
        decision = self._decide(step, fact)
        self._log(step, decision, f"about {fact.size_bytes} bytes")
        if decision.is_written:
            return self._write(step, frame, fingerprint, stopwatch)
        self._skip(step, fact)
        return frame

    def release(self, scope: Scope = ()) -> None:
        """
        Remove the cached steps of a scope from Spark's cache.

        :param scope: Scope of the finished item; by default all steps.
        """
        for step in [step for step in self._cached if step[0][: len(scope)] == scope]:
            self._release_step(step)

    def _cache(self, step: StepKey, frame: DataFrame) -> DataFrame:
        from pyspark import StorageLevel

        if is_cached(frame):
            # The user has persisted it and must unpersist it.
            return frame
        self._cached[step] = frame.persist(StorageLevel.MEMORY_AND_DISK)
        return self._cached[step]

    def _measure(self, step: StepKey, frame: DataFrame, fingerprint: str, stopwatch: Stopwatch) -> AutoFact:
        frame.write.format("noop").mode("overwrite").save()
        fact = AutoFact(fingerprint=fingerprint, compute_seconds=stopwatch(), size_bytes=cached_bytes(frame))
        self._steps.auto_facts.record(step, fact)
        return fact

    def _decide(self, step: StepKey, fact: AutoFact) -> Decision:
        shortage = self._steps.shortage(step, fact.size_bytes)
        if shortage is not None:
            return Decision(False, shortage)
        if not self._steps.costs.allow():
            self._steps.costs.put_off += 1
            return Decision(False, "overhead_budget is used up")
        size = fact.size_bytes
        expected = None if size is None else self._steps.write_times.expected_seconds(size)
        return decide(fact.compute_seconds, expected, unwritten_seconds=self._unwritten_seconds)

    def _write(self, step: StepKey, frame: DataFrame, fingerprint: str, stopwatch: Stopwatch) -> DataFrame:
        written = self._steps.write(step, frame, fingerprint, stopwatch, is_computed=True)
        self._unwritten_seconds = 0.0
        self._release_step(step)
        return self._steps.save(step, written)

    def _skip(self, step: StepKey, fact: AutoFact) -> None:
        self._unwritten_seconds += fact.compute_seconds
        self._steps.figures.skipped(step, fact.compute_seconds)

    def _release_step(self, step: StepKey) -> None:
        frame = self._cached.pop(step, None)
        try:
            if frame is not None:
                frame.unpersist()
        except Exception as error:
            # The session may have ended, which has freed the cache.
            log.debug("Step %s could not be removed from Spark's cache: %s", describe(step), error)

    def _log(self, step: StepKey, decision: Decision, basis: str) -> None:
        verb = "written" if decision.is_written else "not written"
        log.info("Step %s is %s: %s (%s).", describe(step), verb, decision.reason, basis)


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a step is written, and why."""

    is_written: bool
    reason: str


def decide(compute_seconds: float, write_seconds: float | None, *, unwritten_seconds: float = 0.0) -> Decision:
    """
    Compare the time that a retry would save with the time of the write.

    :param compute_seconds: Time to compute the step from its cached inputs.
    :param write_seconds: Expected time to write it; ``None`` if no write was measured yet.
    :param unwritten_seconds: Time to compute the steps since the last written one, which a retry repeats too.
    """
    if write_seconds is None:
        return Decision(
            True, f"computing took {compute_seconds:.2f} s, the time of a write is not known yet and is measured now"
        )
    limit = COMPUTE_PER_WRITE * write_seconds
    is_written = compute_seconds + unwritten_seconds >= limit
    sign = ">=" if is_written else "<"
    return Decision(
        is_written,
        f"computing took {compute_seconds:.2f} s{_unwritten(unwritten_seconds)} {sign} {limit:.2f} s = "
        f"{COMPUTE_PER_WRITE:g} x {write_seconds:.2f} s for writing",
    )


def _unwritten(seconds: float) -> str:
    return f" and {seconds:.2f} s of unwritten steps before it" if seconds else ""


def is_cached(frame: DataFrame) -> bool:
    """Return whether the user has persisted a DataFrame."""
    level = frame.storageLevel
    return level.useMemory or level.useDisk


def cached_bytes(frame: DataFrame) -> int | None:
    """Return the size of a cached and computed DataFrame, ``None`` if Spark does not report it."""
    # A new query: a plan from before the cache would report the size of its sources.
    return cached_size(explained_with_costs(frame.select("*")))
