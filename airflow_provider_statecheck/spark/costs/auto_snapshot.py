"""Steps with ``when="auto"``: computed into Spark's cache, timed, and written where that pays."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_provider_statecheck.spark.costs.auto_decision import Decision, decide
from airflow_provider_statecheck.spark.costs.auto_facts import AutoFact
from airflow_provider_statecheck.spark.costs.cached_size import cached_bytes, is_cached
from airflow_provider_statecheck.spark.scope import Scope, StepKey, describe
from airflow_provider_statecheck.spark.snapshots.live import Stopwatch
from airflow_provider_statecheck.spark.steps import StageSteps, built

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
