"""What checkpointing costs a stage, over all its tries, and whether there is budget for more of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError

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
