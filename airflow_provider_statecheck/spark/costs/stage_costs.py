"""Measured costs of steps, snapshots and checkpoints over all tries, and the overhead budget."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.scope import Scope, StepKey

log = logging.getLogger(__name__)


class StageCosts:
    """
    Counts the seconds that checkpointing took, against those that passed.

    :param overhead_budget: Which part of the time it may take, above 0 and up to 1; ``None`` for any.
    :param monotonic: The clock for durations, in seconds.
    :param encoded: What :meth:`encode` gave in an earlier try.
    :raises InvalidConfigurationError: for a budget out of range.
    """

    def __init__(self, overhead_budget: float | None, monotonic: Callable[[], float], encoded: Any = None) -> None:
        require_budget(overhead_budget)
        saved = encoded or {}
        self.spent_seconds: float = saved.get("spent", 0.0)
        """What checkpointing took; of a step that was computed while it was written, the estimated part."""
        self.put_off: int = saved.get("put_off", 0)
        """How many checkpoints and optional snapshots were put off."""
        self._budget = overhead_budget
        self._monotonic = monotonic
        self._elapsed_before: float = saved.get("elapsed", 0.0)
        self._begin = monotonic()
        self._is_holding_back = False

    def encode(self) -> dict[str, Any]:
        """Return the counts as JSON."""
        return {
            "spent": round(self.spent_seconds, 3),
            "elapsed": round(self.elapsed_seconds, 3),
            "put_off": self.put_off,
        }

    @property
    def elapsed_seconds(self) -> float:
        """Return how long the tries took up to now, as far as their checkpoints tell."""
        return self._elapsed_before + self._monotonic() - self._begin

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count what happens inside as checkpointing, whether it succeeds or not."""
        begin = self._monotonic()
        try:
            yield
        finally:
            self.spent_seconds += self._monotonic() - begin

    def allow(self) -> bool:
        """Tell whether there is budget for optional work; the first time that there is none is logged."""
        if self._budget is None or self.spent_seconds <= self._budget * self.elapsed_seconds:
            return True
        if not self._is_holding_back:
            self._is_holding_back = True
            log.info("%s, overhead_budget is %s: optional checkpoints are put off.", self._share(), self._budget)
        return False

    def summary(self) -> str:
        """Say in one line what checkpointing cost."""
        return f"{self._share()}, {self.put_off} checkpoints put off"

    def report(self) -> None:
        """Log the summary, if there is anything to sum up."""
        if self.spent_seconds or self.put_off:
            log.info("%s", self.summary())

    def _share(self) -> str:
        spent, elapsed = self.spent_seconds, self.elapsed_seconds
        share = spent / elapsed if elapsed else 0.0
        return f"Checkpointing took {spent:.1f} s of {elapsed:.0f} s ({100 * share:.1f} %)"


def require_budget(overhead_budget: object) -> None:
    """
    Refuse a budget that is no part of the time.

    :raises InvalidConfigurationError: for anything but ``None`` and a number above 0 and up to 1.
    """
    if overhead_budget is None:
        return
    is_number = isinstance(overhead_budget, int | float) and not isinstance(overhead_budget, bool)
    if not is_number or not 0 < overhead_budget <= 1:  # type: ignore[operator]
        raise InvalidConfigurationError(
            f"Expected overhead_budget to be above 0 and at most 1, such as 0.05 for 5 %, found {overhead_budget!r}."
        )


MIB = 1024 * 1024
ASSUMED_BYTES_PER_SECOND = 64 * MIB
"""Of storage that nothing is known of yet."""
_KEPT = 16
# Of a smaller write most may be the start of a Spark job or a slow commit, which says nothing about bytes; a rate learned
# from one would keep all large steps from being written, and so from ever correcting it.
_TELLING_BYTES = 64 * MIB


class WriteTimes:
    """
    The last writes of a stage that were timed alone, apart from computing.

    A write is taken to cost a fixed part, the shortest small one seen, and its bytes at the rate of all larger ones
    together.

    :param encoded: What :meth:`encode` gave.
    """

    def __init__(self, encoded: Any = ()) -> None:
        self._seen: list[tuple[int, float]] = [(int(size), float(seconds)) for size, seconds in encoded]

    def encode(self) -> list[Any]:
        """Return the writes as JSON."""
        return [[size, round(seconds, 3)] for size, seconds in self._seen]

    def observe(self, size_bytes: int, seconds: float) -> None:
        """Learn from a write; only the last ones count."""
        self._seen = [*self._seen, (size_bytes, seconds)][-_KEPT:]

    def expected_seconds(self, size_bytes: int) -> float | None:
        """Return how long writing so many bytes will take; ``None`` where nothing was learned."""
        if not self._seen:
            return None
        fixed = self._fixed_seconds()
        return fixed + size_bytes / self._bytes_per_second(fixed)

    def part_of(self, seconds: float, size_bytes: int) -> float:
        """Return which part of computing and writing in one go was writing."""
        expected = self.expected_seconds(size_bytes)
        return min(seconds, size_bytes / ASSUMED_BYTES_PER_SECOND if expected is None else expected)

    def _fixed_seconds(self) -> float:
        # Where only large ones were seen a small one is thought to be free; when it is written it shows.
        return min((seconds for size, seconds in self._seen if size < _TELLING_BYTES), default=0.0)

    def _bytes_per_second(self, fixed: float) -> float:
        telling = [
            (size, seconds - fixed) for size, seconds in self._seen if size >= _TELLING_BYTES and seconds > fixed
        ]
        if not telling:
            return ASSUMED_BYTES_PER_SECOND
        return sum(size for size, _ in telling) / sum(seconds for _, seconds in telling)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoFact:
    """What computing a step showed."""

    fingerprint: str
    """Of the code that was measured."""
    compute_seconds: float
    size_bytes: int | None
    """As Spark tells of the cached DataFrame; ``None`` where it does not."""


class AutoFacts:
    """
    The measured steps of a stage, so that a retry which knows nothing more decides the same.

    :param encoded: What :meth:`encode` gave.
    """

    def __init__(self, encoded: Any = ()) -> None:
        self._facts: dict[StepKey, AutoFact] = {
            (tuple((loop, item) for loop, item in scope), name): AutoFact(
                fingerprint=fingerprint, compute_seconds=seconds, size_bytes=size
            )
            for scope, name, fingerprint, seconds, size in encoded
        }

    def encode(self) -> list[Any]:
        """Return the facts as JSON."""
        return [
            [[list(pair) for pair in scope], name, fact.fingerprint, round(fact.compute_seconds, 3), fact.size_bytes]
            for (scope, name), fact in sorted(self._facts.items(), key=lambda entry: entry[0])
        ]

    def find(self, step: StepKey, fingerprint: str) -> AutoFact | None:
        """Return what is known of a step, unless it has changed since."""
        fact = self._facts.get(step)
        return fact if fact is not None and fact.fingerprint == fingerprint else None

    def remember(self, step: StepKey, fact: AutoFact) -> None:
        """Keep what computing a step showed."""
        self._facts[step] = fact

    def drop_scope(self, scope: Scope) -> None:
        """Forget the steps inside a finished item."""
        self._facts = {step: fact for step, fact in self._facts.items() if step[0][: len(scope)] != scope}
