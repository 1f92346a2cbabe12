"""How soon after a checkpoint the next one may be taken by itself."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta

from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.spark.costs.young_daly import AutoInterval

log = logging.getLogger(__name__)
_TELLING = 1.5
"""By such a factor an interval has to change to be told again."""


class Pace:
    """
    Tells whether the pause after the last completed checkpoint is over.

    The last one of a loop and those that are asked for do not wait for it.

    :param checkpoint_interval: How much time lies between two checkpoints, also before the first; a bare number is
        milliseconds, ``None`` is no limit, and an :class:`AutoInterval` finds it by itself.
    :param min_pause: How much time lies after one at least; nothing before the first.
    :param monotonic: The clock for durations, in seconds.
    :raises InvalidConfigurationError: for a duration out of range.
    """

    def __init__(
        self,
        checkpoint_interval: AutoInterval | timedelta | str | int | None,
        min_pause: timedelta | str | int | None,
        monotonic: Callable[[], float],
    ) -> None:
        self._auto = checkpoint_interval if isinstance(checkpoint_interval, AutoInterval) else None
        config = CheckpointConfig()
        config.checkpoint_interval = None if isinstance(checkpoint_interval, AutoInterval) else checkpoint_interval
        config.min_pause_between_checkpoints = min_pause
        self._between = (config.effective_interval or config.effective_min_pause).total_seconds()
        self._monotonic = monotonic
        self._begin = monotonic()
        self._wait = (config.checkpoint_interval or timedelta(0)).total_seconds()
        self._told: float | None = None
        if self._auto is not None:
            self._wait = self._auto.seconds
            self._tell(self._auto)

    def allows(self) -> bool:
        """Tell whether a checkpoint may be taken by itself."""
        return self._monotonic() - self._begin >= self._wait

    def completed(self, cost_seconds: float | None = None) -> None:
        """
        Begin anew after a checkpoint was completed.

        :param cost_seconds: What it took, as far as that is known.
        """
        self._begin = self._monotonic()
        self._wait = self._between
        if self._auto is not None:
            if cost_seconds is not None:
                self._auto.observe(cost_seconds)
            self._wait = max(self._between, self._auto.seconds)
            self._tell(self._auto)

    def observed(self, cost_seconds: float) -> None:
        """
        Learn what the last checkpoint took, while the time after it is running.

        :param cost_seconds: What it took.
        """
        if self._auto is not None:
            self._auto.observe(cost_seconds)
            self._wait = max(self._between, self._auto.seconds)
            self._tell(self._auto)

    def _tell(self, auto: AutoInterval) -> None:
        if self._told is None or not self._told / _TELLING < auto.seconds < self._told * _TELLING:
            self._told = auto.seconds
            log.info("Checkpoints are taken %s.", auto.reason)
