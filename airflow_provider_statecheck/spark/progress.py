"""How far a stage has come, as a line of its log: the part that is done, the rate, and when it will be at its end."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from airflow_provider_statecheck.spark.readable import readable_seconds

log = logging.getLogger(__name__)
_SECONDS_BETWEEN_LINES = 10.0
_MEMORY_SECONDS = 60.0
"""After so much time an old rate counts for about a third."""


class StageProgress:
    """
    Counts what a stage has read, and says so every few seconds.

    What was read before a restore is kept: it counts for the part that is done, but not for the rate.

    :param name: Of the stage.
    :param total: Bytes of the whole input, or splits where their bytes are unknown; ``None`` where nothing is known.
    :param kept: How much of it earlier tries had finished.
    :param monotonic: The clock for durations, in seconds.
    :param seconds_between_lines: The least time from one line to the next.
    """

    def __init__(
        self,
        name: str,
        total: int | None,
        *,
        monotonic: Callable[[], float],
        kept: int = 0,
        seconds_between_lines: float = _SECONDS_BETWEEN_LINES,
    ) -> None:
        self._name = name
        self._total = total
        self._finished = self._kept = kept
        self._rows = 0
        self._monotonic = monotonic
        self._seconds_between_lines = seconds_between_lines
        self._begin = self._seen_at = monotonic()
        self._line_at = -math.inf
        self._rate = SmoothedRate(_MEMORY_SECONDS)
        self._row_rate = SmoothedRate(_MEMORY_SECONDS)
        if kept:
            log.info("Stage %s goes on: %s", name, self._kept_shown)

    def advance(self, amount: int, rows: int, *, total: int | None = None) -> None:
        """
        Count what was read since the last time, and log a line if it is time for one.

        :param amount: Bytes or splits, as the total is given.
        :param rows: Rows.
        :param total: The new total, where the input has grown.
        """
        now = self._monotonic()
        self._rate.observe(amount, now - self._seen_at)
        self._row_rate.observe(rows, now - self._seen_at)
        self._seen_at = now
        self._finished += amount
        self._rows += rows
        self._total = self._total if total is None else total
        if now - self._line_at >= self._seconds_between_lines:
            self._line_at = now
            log.info("%s", self.line())

    def finished(self) -> None:
        """Log what the stage has done in this try."""
        seconds = self._monotonic() - self._begin
        rate = self._rows / seconds if seconds > 0 else 0.0
        kept = f", {self._kept_shown}" if self._kept else ""
        log.info(
            "Stage %s is done: %s rows in %s, %s rows/s%s",
            self._name,
            f"{self._rows:,}",
            readable_seconds(seconds),
            f"{rate:,.0f}",
            kept,
        )

    def line(self) -> str:
        """Return how far the stage has come, for people."""
        parts = [f"{self._rows:,} rows", f"{self._row_rate.per_second:,.0f} rows/s"]
        if self.percent is not None:
            parts.insert(0, f"{self.percent} %")
        if self._kept:
            parts.append(self._kept_shown)
        if self.seconds_left is not None:
            parts.append(f"done in about {readable_seconds(self.seconds_left)}")
        return f"Stage {self._name}: {', '.join(parts)}"

    @property
    def percent(self) -> int | None:
        """Return the part that is done, 100 only at the end; ``None`` where the total is not known."""
        return self._percent_of(self._finished)

    @property
    def seconds_left(self) -> float | None:
        """Return how long the rest will take at the present rate; ``None`` where nobody can tell."""
        if self._total is None or not self._rate.per_second:
            return None
        return max(self._total - self._finished, 0) / self._rate.per_second

    def _percent_of(self, amount: int) -> int | None:
        if self._total is None:
            return None
        return 100 if amount >= self._total else amount * 100 // self._total

    @property
    def _kept_shown(self) -> str:
        percent = self._percent_of(self._kept)
        return "what was done before is kept" if percent is None else f"{percent} % kept"


class SmoothedRate:
    """
    An amount per second of which the past counts ever less.

    :param memory_seconds: After so much time what was before counts for about a third.
    """

    def __init__(self, memory_seconds: float) -> None:
        self._memory_seconds = memory_seconds
        self._amount = 0.0
        self._seconds = 0.0

    def observe(self, amount: float, seconds: float) -> None:
        """Count an amount and the time that it took."""
        fading = math.exp(-seconds / self._memory_seconds)
        self._amount = self._amount * fading + amount
        self._seconds = self._seconds * fading + seconds

    @property
    def per_second(self) -> float:
        """Return the rate, zero where no time has passed."""
        return self._amount / self._seconds if self._seconds > 0 else 0.0
