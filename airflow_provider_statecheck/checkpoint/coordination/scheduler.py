"""When periodic checkpoints are due."""

from __future__ import annotations

from datetime import datetime, timedelta
from random import Random

from airflow_provider_statecheck.checkpoint.clock import Clock
from airflow_provider_statecheck.checkpoint.validation import require


class PeriodicTrigger:
    """
    Fires at a fixed rate, first after a random delay, so that many jobs that start together do not checkpoint together.

    What was missed is not made up for: after a long silence it fires once, and then in its old rhythm.

    :param interval: What lies between two firings; the pause if that is longer.
    :param min_pause: The shortest delay before the first one.
    :param random: Where the delay comes from.
    :param clock: What time it is when the trigger is armed anew.
    :raises InvalidConfigurationError: for an interval of no length or a negative pause.
    """

    def __init__(self, interval: timedelta, min_pause: timedelta, random: Random, clock: Clock) -> None:
        require("interval", interval, lambda length: length > timedelta(0), "longer than nothing")
        require("min_pause", min_pause, lambda pause: pause >= timedelta(0), "no negative time")
        self._interval = max(interval, min_pause)
        self._min_pause = min_pause
        self._random = random
        self._clock = clock
        self._next_fire_at: datetime | None = None

    @property
    def is_started(self) -> bool:
        """Tell whether it fires."""
        return self._next_fire_at is not None

    @property
    def next_fire_at(self) -> datetime | None:
        """Return when it fires next, ``None`` while it is stopped."""
        return self._next_fire_at

    def start(self, now: datetime) -> None:
        """Begin; what was set before is forgotten."""
        delay = self._random.uniform(self._min_pause.total_seconds(), self._interval.total_seconds())
        self._next_fire_at = now + timedelta(seconds=delay)

    def stop(self) -> None:
        """Fire no more until it is started again."""
        self._next_fire_at = None

    def due(self, now: datetime) -> bool:
        """Tell whether to trigger a checkpoint now; each firing is told once."""
        if self._next_fire_at is None:
            return False
        # Nothing is due later than in an interval, unless the clock was set back since.
        self._next_fire_at = min(self._next_fire_at, now + self._interval)
        if now < self._next_fire_at:
            return False
        missed = (now - self._next_fire_at) // self._interval
        self._next_fire_at += (missed + 1) * self._interval
        return True

    def rearm(self, delay: timedelta) -> None:
        """Fire after this time and then at the fixed rate; nothing if it is stopped."""
        if self._next_fire_at is not None:
            self._next_fire_at = self._clock.now() + delay
