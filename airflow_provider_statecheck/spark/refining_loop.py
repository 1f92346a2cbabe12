"""Loops that refine one DataFrame and take a snapshot of it every few iterations."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.codec import require, require_count
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.fingerprint import combined_fingerprint
from airflow_provider_statecheck.spark.snapshots.live_snapshots import LiveSnapshot, Stopwatch
from airflow_provider_statecheck.spark.steps import StageSteps, built
from airflow_provider_statecheck.state.progress import Iteration, NamedSnapshot, Scope, ScopedNames, StepKey, describe

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

_A_FUNCTION = "a function"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refinement:
    """
    Definition of a loop; the fields are the arguments of ``checkpoint.iterate``.

    :raises InvalidConfigurationError: for an argument out of range.
    """

    initial: DataFrame | Callable[[], DataFrame]
    steps: int
    every: int
    step: Callable[[DataFrame, int], DataFrame]
    until: Callable[[DataFrame, DataFrame], bool] | None
    version: str | None

    def __post_init__(self) -> None:
        for name in ("every", "steps"):
            object.__setattr__(self, name, require_count(name, getattr(self, name)))
        require("step", self.step, callable, _A_FUNCTION)
        if self.until is not None:
            require("until", self.until, callable, _A_FUNCTION)

    def is_snapshotted(self, number: int) -> bool:
        """Return whether the DataFrame is written after a step."""
        return number % self.every == 0 or number == self.steps

    def compares_unevenly(self, reached: Iteration) -> bool:
        """Return whether ``until`` would compare DataFrames fewer than ``every`` steps apart after a resume."""
        is_over = reached.is_converged or reached.number == self.steps
        return self.until is not None and not is_over and reached.number % self.every != 0

    def fingerprint(self, digest: Callable[[Any, str | None], str]) -> str:
        """
        Return the fingerprint of the loop, without its number of steps.

        :param digest: Function that returns the fingerprint of a part.
        """
        fingerprints = [digest(self.initial, self.version), digest(self.step, self.version)]
        if self.until is not None:
            # ``until`` is called at every multiple of ``every``, which therefore decides where the loop ends.
            fingerprints += [digest(self.until, self.version), str(self.every)]
        return combined_fingerprint(*fingerprints)

    def has_converged(self, number: int, current: DataFrame, previous: DataFrame) -> bool:
        """
        Return the result of ``until`` after a multiple of ``every`` steps, else ``False``.

        :raises InvalidConfigurationError: if the result is not a bool; a DataFrame or column would always count as
            true.
        """
        if self.until is None or number % self.every != 0:
            return False
        converged: Any = self.until(current, previous)
        if not isinstance(converged, bool):
            raise InvalidConfigurationError(
                f"Expected until to return True or False, found {type(converged).__name__}; collect the value and "
                "compare it."
            )
        return converged


class RefiningLoop:
    """
    Execution of a loop in one attempt.

    Only the newest snapshot of the loop is live. The previous one is deleted after the next checkpoint, because no plan
    of the loop reads it any more. The number of snapshots on storage does not grow with the number of steps.

    :param names: Names in use; each step of the loop has its own scope.
    :param release: Function that frees the cached DataFrames of a finished scope.
    """

    def __init__(
        self,
        steps: StageSteps,
        names: ScopedNames,
        loop: StepKey,
        refinement: Refinement,
        release: Callable[[Scope], None],
    ) -> None:
        self._steps = steps
        self._names = names
        self._loop = loop
        self._refinement = refinement
        self._release_memory = release
        self._fingerprint = refinement.fingerprint(steps.fingerprint)
        self._handed_out: list[str] = []
        self._write_seconds = 0.0
        self._last_dropped = 0

    def result(self) -> DataFrame:
        """Return the refined DataFrame, read from its snapshot."""
        self._steps.iterations.expect(self._loop, self._refinement.steps)
        live, reached = self._restored()
        if live is not None and (reached.is_converged or reached.number == self._refinement.steps):
            self._steps.report(self._loop, live, is_restored=True)
            return self._steps.read(live)
        if live is not None:
            log.info("Loop %s resumes after step %s of %s.", self._name, reached.number, self._refinement.steps)
            self._steps.figures.restored(NamedSnapshot((live.handle,)))
        with self._steps.working_on(self._loop):
            return self._refine(live, reached.number)

    @property
    def _name(self) -> str:
        return describe(self._loop)

    def _restored(self) -> tuple[LiveSnapshot | None, Iteration]:
        start = Iteration(number=0, is_converged=False)
        reached = self._steps.iterations.find(self._loop) or start
        live = self._steps.restorable(self._loop, self._fingerprint_at(reached.number), is_loop=True)
        if live is None:
            return None, start
        if self._refinement.compares_unevenly(reached):
            log.info(
                "Loop %s restarts: its snapshot after step %s is not at a multiple of every=%s, as until requires.",
                self._name,
                reached.number,
                self._refinement.every,
            )
            return None, start
        if reached.number > self._refinement.steps:
            log.warning(
                "Loop %s restarts: its snapshot is of step %s, but steps is %s.",
                self._name,
                reached.number,
                self._refinement.steps,
            )
            return None, start
        return live, reached

    def _refine(self, live: LiveSnapshot | None, begin: int) -> DataFrame:
        self._last_dropped = begin
        stopwatch = self._steps.stopwatch(live.handle.seconds if live else 0.0)
        frame = built(self._refinement.initial) if live is None else self._read(live)
        previous = frame
        for number in range(begin + 1, self._refinement.steps + 1):
            with self._names.inside(self._loop[1], str(number)), self._steps.within(self._fingerprint):
                frame = self._step(frame, number)
            if self._refinement.is_snapshotted(number):
                frame, is_over = self._checkpoint(number, frame, previous, stopwatch)
                if is_over:
                    break
                previous = frame
        self._report()
        return frame

    def _step(self, frame: DataFrame, number: int) -> DataFrame:
        return built(self._refinement.step(frame, number))

    def _checkpoint(
        self, number: int, frame: DataFrame, previous: DataFrame, stopwatch: Stopwatch
    ) -> tuple[DataFrame, bool]:
        is_early = number < self._refinement.steps and not self._steps.pace.allows()
        is_over_budget = number < self._refinement.steps and not is_early and not self._steps.costs.allow()
        is_postponed = is_early or is_over_budget
        # A local checkpoint keeps the plan short without a snapshot; its rows are valid for this attempt only.
        current = frame.localCheckpoint() if is_postponed else self._write(number, frame, stopwatch)
        is_converged = self._refinement.has_converged(number, current, previous)
        if is_postponed and not is_converged:
            self._steps.costs.put_off += is_over_budget
            return current, False
        written = self._write(number, current, stopwatch) if is_postponed else current
        self._save(number, is_converged)
        return written, is_converged

    def _write(self, number: int, frame: DataFrame, stopwatch: Stopwatch) -> DataFrame:
        self._steps.require_room(self._loop)
        written = self._steps.write(self._loop, frame, self._fingerprint_at(number), stopwatch)
        # Set here, before any checkpoint: the live snapshot and its number must match in each.
        self._steps.iterations.record(self._loop, Iteration(number, is_converged=False))
        self._write_seconds += written.seconds
        return self._read(written.live)

    def _save(self, number: int, is_converged: bool) -> None:
        self._steps.iterations.record(self._loop, Iteration(number, is_converged))
        self._drop_steps(number)
        self._unpin()
        self._steps.checkpoint_after_work()
        log.info("Loop %s: snapshot of step %s of %s written.", self._name, number, self._refinement.steps)

    def _read(self, live: LiveSnapshot) -> DataFrame:
        self._handed_out.append(live.handle.uri)
        return self._steps.read(live)

    def _drop_steps(self, number: int) -> None:
        scope, name = self._loop
        for finished in range(self._last_dropped + 1, number + 1):
            self._steps.drop_scope((*scope, (name, str(finished))))
            self._release_memory((*scope, (name, str(finished))))
        self._last_dropped = number

    def _unpin(self) -> None:
        for uri in self._handed_out[:-1]:
            self._steps.snapshots.handed_out.discard(uri)
        self._handed_out = self._handed_out[-1:]

    def _report(self) -> None:
        live = self._steps.snapshots.find(self._loop)
        if live is not None:
            self._steps.report(self._loop, live, is_restored=False, write_seconds=self._write_seconds)

    def _fingerprint_at(self, number: int) -> str:
        return combined_fingerprint(self._fingerprint, str(number))
