"""Steps with ``when="auto"``: snapshotted only where that is cheaper than recomputing."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.spark.costs.stage_costs import AutoFact
from airflow_provider_statecheck.spark.scope import Scope, StepKey, describe
from airflow_provider_statecheck.spark.snapshots.live_snapshots import Stopwatch
from airflow_provider_statecheck.spark.steps import StageSteps, built

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


COMPUTE_PER_WRITE = 2.0
"""
How many times longer than writing a step computing it must take to be worth it.

A written step is read back at least once, which costs about as much again, and that before anything has failed.
"""


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of a step, and why."""

    is_written: bool
    reason: str


def decide(compute_seconds: float, write_seconds: float | None, *, unwritten_seconds: float = 0.0) -> Decision:
    """
    Compare what a retry would save with what writing costs now.

    :param compute_seconds: What computing the step took, from the cache of those before it.
    :param write_seconds: What writing it is expected to take; ``None`` where nothing was learned yet.
    :param unwritten_seconds: What computing those took that were not written since the last one that was; a retry
        repeats them too.
    """
    if write_seconds is None:
        return Decision(
            True, f"computing took {compute_seconds:.2f} s, how long writing takes is not known yet and measured now"
        )
    limit = COMPUTE_PER_WRITE * write_seconds
    is_written = compute_seconds + unwritten_seconds >= limit
    sign = ">=" if is_written else "<"
    return Decision(
        is_written,
        f"computing took {compute_seconds:.2f} s{_before(unwritten_seconds)} {sign} {limit:.2f} s = "
        f"{COMPUTE_PER_WRITE:g} x {write_seconds:.2f} s for writing",
    )


def _before(unwritten_seconds: float) -> str:
    return f" and {unwritten_seconds:.2f} s before it" if unwritten_seconds else ""


_STATISTICS = re.compile(r"Statistics\(sizeInBytes=([\d.]+(?:E[+-]?\d+)?) ([KMGTPE]?)i?B")
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}


def is_cached(frame: DataFrame) -> bool:
    """Tell whether somebody has asked Spark to keep this DataFrame."""
    level = frame.storageLevel
    return level.useMemory or level.useDisk


def cached_bytes(frame: DataFrame) -> int | None:
    """Return how large a cached and computed DataFrame is, ``None`` if Spark does not say."""
    # A new query: one that was planned before it was cached would go on to tell of its sources.
    return explained_bytes(_explained(frame.select("*")))


def explained_bytes(explained: str) -> int | None:
    """
    Return the size of the cached relation at the top of a plan.

    :param explained: What ``explain("cost")`` prints.
    """
    top = next((line for line in explained.splitlines() if line and not line.startswith("==")), "")
    found = _STATISTICS.search(explained)
    if found is None or not top.startswith("InMemoryRelation"):
        return None
    return int(float(found.group(1)) * 1024 ** _POWERS[found.group(2)])


def _explained(frame: Any) -> str:
    if hasattr(frame, "_jdf"):
        query = frame._jdf.queryExecution()
        return str(frame.sparkSession._jvm.org.apache.spark.sql.api.python.PythonSQLUtils.explainString(query, "cost"))
    return str(frame._explain_string(mode="cost"))


log = logging.getLogger(__name__)


class AutoSnapshots:
    """
    Decides step by step, and keeps what is not written in Spark's cache.

    :param steps: Writes and reads.
    """

    def __init__(self, steps: StageSteps) -> None:
        self._steps = steps
        self._saving = steps.saving
        self._cached: dict[StepKey, DataFrame] = {}
        # Steps before may be what a step was computed from, and would be computed again with it.
        self._unwritten_seconds = 0.0

    def take(self, step: StepKey, build: DataFrame | Callable[[], DataFrame], fingerprint: str) -> DataFrame:
        """
        Return a step that has no snapshot, from a new one or from Spark's cache.

        :raises UnsupportedStateError: for a DataFrame that is to be written and could not be restored equal.
        """
        known = self._saving.auto_facts.find(step, fingerprint)
        decision = None if known is None else self._decide(step, known)
        if known is not None and decision is not None and not decision.is_written:
            self._log(step, decision, "what an earlier try measured")
            self._unwritten_seconds += known.compute_seconds
            return self._cache(step, built(build))
        stopwatch = self._steps.stopwatch()
        frame = self._cache(step, built(build))
        fact = self._measure(step, frame, fingerprint, stopwatch)
        decision = self._decide(step, fact)
        self._log(step, decision, f"about {fact.size_bytes} bytes")
        if decision.is_written:
            return self._write(step, frame, fingerprint, stopwatch)
        self._unwritten_seconds += fact.compute_seconds
        return frame

    def release(self, scope: Scope = ()) -> None:
        """
        Give Spark's memory back.

        :param scope: The item that is finished; by default everything goes.
        """
        for step in [step for step in self._cached if step[0][: len(scope)] == scope]:
            self._release_step(step)

    def _cache(self, step: StepKey, frame: DataFrame) -> DataFrame:
        from pyspark import StorageLevel

        if is_cached(frame):
            # It is the user's, and his to give back.
            return frame
        self._cached[step] = frame.persist(StorageLevel.MEMORY_AND_DISK)
        return self._cached[step]

    def _measure(self, step: StepKey, frame: DataFrame, fingerprint: str, stopwatch: Stopwatch) -> AutoFact:
        frame.write.format("noop").mode("overwrite").save()
        fact = AutoFact(fingerprint=fingerprint, compute_seconds=stopwatch(), size_bytes=cached_bytes(frame))
        self._saving.auto_facts.remember(step, fact)
        return fact

    def _decide(self, step: StepKey, fact: AutoFact) -> Decision:
        shortage = self._steps.shortage(step, fact.size_bytes)
        if shortage is not None:
            return Decision(False, shortage)
        if not self._saving.costs.allow():
            self._saving.costs.put_off += 1
            return Decision(False, "overhead_budget is used up")
        size = fact.size_bytes
        expected = None if size is None else self._saving.write_times.expected_seconds(size)
        return decide(fact.compute_seconds, expected, unwritten_seconds=self._unwritten_seconds)

    def _write(self, step: StepKey, frame: DataFrame, fingerprint: str, stopwatch: Stopwatch) -> DataFrame:
        written = self._steps.write(step, frame, fingerprint, stopwatch, is_computed=True)
        self._unwritten_seconds = 0.0
        self._release_step(step)
        return self._steps.save(step, written)

    def _release_step(self, step: StepKey) -> None:
        frame = self._cached.pop(step, None)
        try:
            if frame is not None:
                frame.unpersist()
        except Exception as error:
            # The session may be gone, and its memory with it.
            log.debug("The cache of step %s was not given back: %s", describe(step), error)

    def _log(self, step: StepKey, decision: Decision, basis: str) -> None:
        verb = "written" if decision.is_written else "not written"
        log.info("Step %s is %s: %s (%s).", describe(step), verb, decision.reason, basis)
