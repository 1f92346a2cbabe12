"""How often and how long a call on a storage is repeated."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from airflow_provider_statecheck.storage.failures import is_transient, judged_alone

log = logging.getLogger(__name__)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """
    Exponential backoff with jitter, within bounds.

    The clients of object stores repeat some requests by themselves; this is for what they give up on, or never repeat.
    """

    attempts: int = 5
    """How often a call is made at most."""
    first_pause_seconds: float = 0.2
    """Upper bound of the first pause; each later one is twice as long."""
    longest_pause_seconds: float = 10.0
    """Upper bound of any pause."""
    deadline_seconds: float = 120.0
    """After this time no new attempt begins, since one attempt may already take minutes."""
    sleep: Callable[[float], None] = time.sleep
    monotonic: Callable[[], float] = time.monotonic
    random: Callable[[], float] = random.random
    """A number from 0 to before 1: clients that failed together shall not come back together."""

    def call(self, action: Callable[[], Result], name: str) -> Result:
        """
        Make a call, and again while it fails in a way that passes.

        :param name: What it is about, for the log.
        """
        with judged_alone():
            return self._call(action, name)

    def _call(self, action: Callable[[], Result], name: str) -> Result:
        started = self.monotonic()
        for number in range(1, self.attempts):
            try:
                return action()
            except Exception as error:
                pause = self._pause_after(number)
                if not is_transient(error) or self.monotonic() - started + pause > self.deadline_seconds:
                    raise
                # Only the kind: what clients say may hold signed URLs.
                log.warning("%s is tried again in %.1f s after %s", name, pause, type(error).__name__)
                self.sleep(pause)
        return action()

    def _pause_after(self, number: int) -> float:
        longest = min(self.longest_pause_seconds, self.first_pause_seconds * 2.0 ** (number - 1))
        return longest * self.random()
