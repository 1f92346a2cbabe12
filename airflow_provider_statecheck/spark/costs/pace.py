"""How soon after a checkpoint the next one may be taken by itself."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from airflow_provider_statecheck.checkpoint.config import CheckpointConfig


class Pace:
    """
    Tells whether the pause after the last completed checkpoint is over.

    The last one of a loop and those that are asked for do not wait for it.

    :param checkpoint_interval: How much time lies between two checkpoints, also before the first; a bare number is
        milliseconds, ``None`` is no limit.
    :param min_pause: How much time lies after one at least; nothing before the first.
    :param monotonic: The clock for durations, in seconds.
    :raises InvalidConfigurationError: for a duration out of range.
    """

    def __init__(
        self,
        checkpoint_interval: timedelta | str | int | None,
        min_pause: timedelta | str | int | None,
        monotonic: Callable[[], float],
    ) -> None:
        config = CheckpointConfig()
        config.checkpoint_interval = checkpoint_interval
        config.min_pause_between_checkpoints = min_pause
        self._between = config.effective_interval or config.effective_min_pause
        self._monotonic = monotonic
        self._begin = monotonic()
        self._wait = config.checkpoint_interval or timedelta(0)

    def allows(self) -> bool:
        """Tell whether a checkpoint may be taken by itself."""
        return self._monotonic() - self._begin >= self._wait.total_seconds()

    def completed(self) -> None:
        """Begin anew after a checkpoint was completed."""
        self._begin = self._monotonic()
        self._wait = self._between
