"""Loops that refine one DataFrame and snapshot it every few iterations."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.costs.pacing import require_every
from airflow_provider_statecheck.spark.fingerprints.step import combined_fingerprint
from airflow_provider_statecheck.spark.loop_progress import Iteration
from airflow_provider_statecheck.spark.scope import Scope, ScopedNames, StepKey, describe
from airflow_provider_statecheck.spark.snapshots.live_snapshots import LiveSnapshot, Stopwatch
from airflow_provider_statecheck.spark.steps import StageSteps, built

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refinement:
    """
    What a loop does; the fields are the arguments of ``checkpoint.iterate``.

    :raises InvalidConfigurationError: for an argument out of range.
    """

    initial: DataFrame | Callable[[], DataFrame]
    steps: int
    every: int
    step: Callable[[DataFrame, int], DataFrame]
    until: Callable[[DataFrame, DataFrame], bool] | None
    version: str | None

    def __post_init__(self) -> None:
        require_every(self.every)
        steps: Any = self.steps
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
            raise InvalidConfigurationError(f"Expected steps to be a whole number of at least 1, found {steps!r}.")
        self._require_callable("step", self.step)
        if self.until is not None:
            self._require_callable("until", self.until)

    def is_border(self, number: int) -> bool:
        """Tell whether the frame is to be kept after a step."""
        return number % self.every == 0 or number == self.steps

    def compares_unevenly(self, reached: Iteration) -> bool:
        """Tell whether ``until``, going on from there, would next compare frames of fewer than ``every`` steps apart."""
        is_over = reached.is_converged or reached.number == self.steps
        return self.until is not None and not is_over and reached.number % self.every != 0

    def fingerprint(self, digest: Callable[[Any, str | None], str]) -> str:
        """
        Return what tells this loop from one that computes something else; ``steps`` does not count.

        :param digest: Gives the fingerprint of one of its parts.
        """
        parts = [digest(self.initial, self.version), digest(self.step, self.version)]
        if self.until is not None:
            # Where it looks decides where the loop ends.
            parts += [digest(self.until, self.version), str(self.every)]
        return combined_fingerprint(*parts)

    def has_converged(self, number: int, current: DataFrame, previous: DataFrame) -> bool:
        """
        Ask ``until``, which is looked at after every so many steps only.

        :raises InvalidConfigurationError: if it gives no truth value; a DataFrame or column would always count as true.
        """
        if self.until is None or number % self.every != 0:
            return False
        found: Any = self.until(current, previous)
        if not isinstance(found, bool):
            raise InvalidConfigurationError(
                f"Expected until to give True or False, found {type(found).__name__}; collect the value and compare it."
            )
        return found

    def _require_callable(self, name: str, value: object) -> None:
        if not callable(value):
            raise InvalidConfigurationError(
                f"Expected {name} to be a function, found {type(value).__name__}; see checkpoint.iterate."
            )


class RefiningLoop:
    """
    One loop in one try.

    Only the newest snapshot of the loop is live. The one before may be deleted with the next checkpoint, because no plan
    of the loop reads it any more; the number of snapshots on storage does not grow with that of steps.

    :param steps: Writes and reads.
    :param names: Gives each step a scope of its own.
    :param loop: The loop's name.
    :param asked: What it does.
    :param release: Gives back the memory of a step that is behind.
    """

    def __init__(
        self,
        steps: StageSteps,
        names: ScopedNames,
        loop: StepKey,
        asked: Refinement,
        release: Callable[[Scope], None],
    ) -> None:
        self._steps = steps
        self._saving = steps.saving
        self._names = names
        self._loop = loop
        self._asked = asked
        self._release_memory = release
        self._fingerprint = asked.fingerprint(steps.fingerprint)
        self._handed_out: list[str] = []
        self._write_seconds = 0.0
        self._last_dropped = 0

    def result(self) -> DataFrame:
        """Return the refined DataFrame, read from its snapshot."""
        live, reached = self._restored()
        if live is not None and (reached.is_converged or reached.number == self._asked.steps):
            self._steps.report(self._loop, live, is_restored=True)
            return self._steps.read(live)
        if live is not None:
            log.info("Loop %s goes on after step %s of %s.", self._text, reached.number, self._asked.steps)
        return self._refine(live, reached.number)

    @property
    def _text(self) -> str:
        return describe(self._loop)

    def _restored(self) -> tuple[LiveSnapshot | None, Iteration]:
        start = Iteration(number=0, is_converged=False)
        reached = self._saving.iterations.find(self._loop) or start
        live = self._steps.restorable(self._loop, self._fingerprint_at(reached.number), is_loop=True)
        if live is None:
            return None, start
        if self._asked.compares_unevenly(reached):
            log.info("Loop %s ended between two looks of until; it is computed from the beginning.", self._text)
            return None, start
        if reached.number > self._asked.steps:
            log.warning(
                "Loop %s was snapshotted after step %s, but only %s steps are asked for: it is computed from the beginning.",
                self._text,
                reached.number,
                self._asked.steps,
            )
            return None, start
        return live, reached

    def _refine(self, live: LiveSnapshot | None, begin: int) -> DataFrame:
        self._last_dropped = begin
        stopwatch = self._steps.stopwatch(live.handle.seconds if live else 0.0)
        frame = built(self._asked.initial) if live is None else self._read(live)
        previous = frame
        for number in range(begin + 1, self._asked.steps + 1):
            with self._names.inside(self._loop[1], str(number)), self._steps.within(self._fingerprint):
                frame = self._step(frame, number)
            if self._asked.is_border(number):
                frame, is_over = self._secure(number, frame, previous, stopwatch)
                if is_over:
                    break
                previous = frame
        self._report()
        return frame

    def _step(self, frame: DataFrame, number: int) -> DataFrame:
        return built(self._asked.step(frame, number))

    def _secure(
        self, number: int, frame: DataFrame, previous: DataFrame, stopwatch: Stopwatch
    ) -> tuple[DataFrame, bool]:
        is_early = number < self._asked.steps and not self._saving.pace.allows()
        is_dear = number < self._asked.steps and not is_early and not self._saving.costs.allow()
        is_put_off = is_early or is_dear
        # Without a snapshot the plan must not grow on: Spark keeps the rows for this try alone.
        current = frame.localCheckpoint() if is_put_off else self._write(number, frame, stopwatch)
        is_converged = self._asked.has_converged(number, current, previous)
        if is_put_off and not is_converged:
            self._saving.costs.put_off += is_dear
            return current, False
        kept = self._write(number, current, stopwatch) if is_put_off else current
        self._save(number, is_converged)
        return kept, is_converged

    def _write(self, number: int, frame: DataFrame, stopwatch: Stopwatch) -> DataFrame:
        self._steps.require_room(self._loop)
        written = self._steps.write(self._loop, frame, self._fingerprint_at(number), stopwatch)
        # At once: the live snapshot and its number must never be apart in a checkpoint.
        self._saving.iterations.reach(self._loop, Iteration(number, is_converged=False))
        self._write_seconds += written.seconds
        return self._read(written.live)

    def _save(self, number: int, is_converged: bool) -> None:
        self._saving.iterations.reach(self._loop, Iteration(number, is_converged))
        self._drop_steps(number)
        self._unpin()
        self._saving.checkpoint()
        log.info("Loop %s is saved after step %s of %s.", self._text, number, self._asked.steps)

    def _read(self, live: LiveSnapshot) -> DataFrame:
        self._handed_out.append(live.handle.uri)
        return self._steps.read(live)

    def _drop_steps(self, number: int) -> None:
        scope, name = self._loop
        for behind in range(self._last_dropped + 1, number + 1):
            self._saving.drop_scope((*scope, (name, str(behind))))
            self._release_memory((*scope, (name, str(behind))))
        self._last_dropped = number

    def _unpin(self) -> None:
        for uri in self._handed_out[:-1]:
            self._saving.snapshots.handed_out.discard(uri)
        self._handed_out = self._handed_out[-1:]

    def _report(self) -> None:
        live = self._saving.snapshots.find(self._loop)
        if live is not None:
            self._steps.report(self._loop, live, is_restored=False, write_seconds=self._write_seconds)

    def _fingerprint_at(self, number: int) -> str:
        return combined_fingerprint(self._fingerprint, str(number))
