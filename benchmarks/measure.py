"""
Measurement of pairs and their results.

Both sides are measured alternately after a warm-up, which distributes changes in the speed of the machine over both.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of a comparison. A larger ``ratio`` is better; a case without a goal is informational."""

    id: str
    case: str
    ours: float
    peer: float
    unit: str
    ratio: float
    goal: float | None
    pairs: list[list[float]]
    sizes: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the result with the machine, the versions and the date."""
        return {
            "id": self.id,
            "case": self.case,
            "ours": self.ours,
            "peer": self.peer,
            "unit": self.unit,
            "ratio": self.ratio,
            "goal": self.goal,
            "met": self.is_met,
            "pairs": self.pairs,
            "sizes": self.sizes,
            "machine": f"{platform.system()} {platform.machine()}, {_cores()} cores",
            "versions": _versions(),
            "seed": None,
            "date": datetime.now(UTC).date().isoformat(),
        }

    @property
    def is_met(self) -> bool | None:
        """Whether the goal is reached, ``None`` without a goal."""
        return None if self.goal is None else self.ratio >= self.goal

    def line(self) -> str:
        """Return the result as a line of text."""
        verdict = "(no goal)" if self.goal is None else f"(goal {self.goal:g}) {'met' if self.is_met else 'NOT met'}"
        return f"{self.id} {self.case}: {self.ratio:.2f}x {verdict}"


def seconds(work: Callable[[], object]) -> float:
    """Return the duration of ``work`` in seconds."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def in_turn(ours: Callable[[], float], peer: Callable[[], float], pairs: int) -> list[list[float]]:
    """
    Measure both sides ``pairs`` times, alternating the first side of a pair.

    An additional first pair is a warm-up.
    """
    readings: list[list[float]] = []
    for i in range(pairs + 1):
        mine, theirs = (ours(), peer()) if i % 2 == 0 else tuple(reversed((peer(), ours())))
        readings.append([mine, theirs])
    return readings[1:]


def median_ratio(pairs: list[list[float]]) -> float:
    """Return the median of the ratios of peer to ours."""
    return statistics.median(theirs / mine for mine, theirs in pairs)


def medians(pairs: list[list[float]]) -> tuple[float, float]:
    """Return the median of each side."""
    return statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs)


def _cores() -> int:
    import os

    return os.cpu_count() or 0


def _versions() -> dict[str, str]:
    names = ("airflow-provider-statecheck", "apache-airflow", "pyspark", "pyarrow", "fsspec")
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in names}
