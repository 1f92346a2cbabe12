"""Clock with a manually set time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class ManualClock:
    """
    Clock that changes only when a test advances it.

    :param start: The initial time, by default 2026-01-01 in UTC.
    """

    def __init__(self, start: datetime | None = None) -> None:
        self._now = start or datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        """Return the current time of the clock."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward, or back with a negative number of seconds."""
        self._now += timedelta(seconds=seconds)
