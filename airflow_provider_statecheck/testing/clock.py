"""A clock that stands still until it is moved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class ManualClock:
    """Time as a test wants it; it starts at a fixed moment."""

    def __init__(self, start: datetime | None = None) -> None:
        self._now = start or datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        """Return the time that was set."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the time on, or back with a negative number."""
        self._now += timedelta(seconds=seconds)
