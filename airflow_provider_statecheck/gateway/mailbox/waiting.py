"""Calls that wait in a mailbox: since when, and what the log and the metrics tell about them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from airflow_provider_statecheck.gateway.mailbox.box import CallName

log = logging.getLogger(__name__)

_REMINDER_SECONDS = 300.0
"""Time until the same reason is logged again."""


class WaitingCalls:
    """
    Calls of a driver that a relay has seen and could not carry.

    :param observe: Called with the age in seconds of the oldest call, after each look that failed, and with 0 after the
        next one that did not.
    :param monotonic: Clock in seconds.
    """

    def __init__(
        self, observe: Callable[[float], None] = lambda _: None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._observe = observe
        self._monotonic = monotonic
        self._since: dict[CallName, float] = {}
        self._reason = ""
        self._told_at = 0.0

    @property
    def seconds(self) -> float:
        """The time since the oldest of them was seen first; 0 without one."""
        return self._monotonic() - min(self._since.values(), default=self._monotonic())

    def left(self, names: Iterable[CallName]) -> None:
        """Record which calls the last look has left."""
        now = self._monotonic()
        self._since = {name: self._since.get(name, now) for name in names}

    def failed(self, reason: str) -> None:
        """Log why a look failed: each reason at once, and again every five minutes."""
        now = self._monotonic()
        if reason != self._reason or now - self._told_at >= _REMINDER_SECONDS:
            age = f", the oldest for {self.seconds:.0f} s" if self._since else ""
            log.warning("Calls of the driver wait in the mailbox%s: %s", age, reason)
            self._reason, self._told_at = reason, now
        self._observe(self.seconds)

    def carried(self) -> None:
        """Log that calls are carried again, if a look had failed."""
        if self._reason:
            log.info("Calls of the driver in the mailbox are carried again.")
            self._reason = ""
            self._observe(0.0)
