from __future__ import annotations

import pytest


class Clock:
    """A clock for durations that a test sets."""

    def __init__(self, seconds: float = 100.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock(0.0)
