"""Minimum, average, maximum and percentiles of a number that each completed checkpoint has."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

NEWEST_VALUES: Final = 200
"""Of how many values percentiles are taken: the newest ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsSummary:
    """Minimum, average and maximum of all values, percentiles of the newest."""

    count: int = 0
    total: int = 0
    minimum: int | None = None
    maximum: int | None = None
    newest: tuple[int, ...] = ()

    @property
    def average(self) -> float | None:
        """Return the mean of all values."""
        return self.total / self.count if self.count else None

    def percentile(self, percent: float) -> int | None:
        """
        Return the smallest of the newest values that so many percent of them do not exceed.

        :param percent: More than 0, at most 100.
        """
        if not self.newest:
            return None
        rank = math.ceil(percent / 100 * len(self.newest))
        return sorted(self.newest)[max(rank, 1) - 1]

    def added(self, value: int) -> StatsSummary:
        """Return the summary with one more value."""
        return StatsSummary(
            count=self.count + 1,
            total=self.total + value,
            minimum=value if self.minimum is None else min(self.minimum, value),
            maximum=value if self.maximum is None else max(self.maximum, value),
            newest=(*self.newest, value)[-NEWEST_VALUES:],
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "count": self.count,
            "total": self.total,
            "minimum": self.minimum,
            "maximum": self.maximum,
            "newest": list(self.newest),
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> StatsSummary:
        """Return what :meth:`to_json` gave."""
        return cls(**content | {"newest": tuple(content["newest"])})
