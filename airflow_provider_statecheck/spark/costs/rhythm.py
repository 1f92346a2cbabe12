"""When a loop takes its checkpoints: after so many items, after so much time, and never in a pause or beyond the budget."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.costs.pace import Pace
from airflow_provider_statecheck.spark.costs.stage_costs import StageCosts


class Rhythm:
    """
    Says after each item whether a checkpoint is to be taken now.

    :param every: After so many items.
    :param every_seconds: Also when the last one is older than this.
    :param costs: May put a checkpoint off; it is then taken after the first item for which there is budget again.
    :param pace: May put one off too; it is then taken after the first item behind the pause.
    :param monotonic: The clock for durations, in seconds.
    """

    def __init__(
        self,
        every: int,
        every_seconds: float | None,
        costs: StageCosts,
        pace: Pace,
        monotonic: Callable[[], float],
    ) -> None:
        self._every = every
        self._every_seconds = every_seconds
        self._costs = costs
        self._pace = pace
        self._monotonic = monotonic
        self._is_late = False
        self._items_since_due = 0
        self._begin()

    def is_time(self) -> bool:
        """Count one more item and tell whether a checkpoint is to be taken after it."""
        self.unsaved += 1
        self._items_since_due += 1
        is_due = self._is_due()
        if not (is_due or self._is_late):
            return False
        if not self._pace.allows():
            self._is_late = True
            return False
        if self._costs.allow():
            return True
        if is_due:
            self._put_off()
        return False

    def taken(self) -> None:
        """Begin anew after a checkpoint."""
        self._is_late = False
        self._items_since_due = 0
        self._begin()

    def _begin(self) -> None:
        self.unsaved = 0
        """How many items no checkpoint of this loop holds yet."""
        self._last = self._monotonic()

    def _is_due(self) -> bool:
        is_old = self._every_seconds is not None and self._monotonic() - self._last >= self._every_seconds
        return self._items_since_due >= self._every or is_old

    def _put_off(self) -> None:
        self._costs.put_off += 1
        self._is_late = True
        self._items_since_due = 0
        self._last = self._monotonic()


def require_every(every: object) -> None:
    """
    Refuse a rhythm below one.

    :raises InvalidConfigurationError: for anything but a whole number of at least 1.
    """
    if not isinstance(every, int) or isinstance(every, bool) or every < 1:
        raise InvalidConfigurationError(f"Expected every to be at least 1, found {every!r}.")
