"""The thread that lets a coordinator look at its clock."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from threading import Event, Lock, Thread
from typing import Protocol

from airflow_provider_statecheck.checkpoint.validation import require

log = logging.getLogger(__name__)


class Waiter(Protocol):
    """Waits until a time is over or somebody ends the waiting."""

    def wait(self, timeout: float) -> bool:
        """Wait, and tell whether the waiting was ended."""
        ...

    def set(self) -> None:
        """End the waiting, now and for ever."""
        ...


class CoordinatorTimer:
    """
    Calls a coordinator again and again until it is stopped; there is no thread before ``start``.

    :param tick: What is called; an error of it is logged and ends nothing.
    :param period: What lies between two calls.
    :param new_waiter: What the thread waits on; one is made for each start.
    :raises InvalidConfigurationError: for a period of no length.
    """

    def __init__(
        self, tick: Callable[[], object], period: timedelta, *, new_waiter: Callable[[], Waiter] = Event
    ) -> None:
        require("period", period, lambda length: length > timedelta(0), "longer than nothing")
        self._tick = tick
        self._period = period.total_seconds()
        self._new_waiter = new_waiter
        self._lock = Lock()
        self._waiter: Waiter | None = None
        self._thread: Thread | None = None

    def start(self) -> None:
        """Begin to call; a timer that runs is begun anew."""
        waiter = self._new_waiter()
        thread = Thread(target=self._run, args=(waiter,), name="checkpoint-timer", daemon=True)
        self._replace(waiter, thread)
        thread.start()

    def stop(self) -> None:
        """Call no more; it does not wait for a call that is in progress, so that a call itself may stop the timer."""
        self._replace(None, self._thread)

    def join(self, timeout: timedelta | None = None) -> None:
        """Wait until the thread has come to its end after a stop; never while holding a lock that a call may need."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(None if timeout is None else timeout.total_seconds())

    def _replace(self, waiter: Waiter | None, thread: Thread | None) -> None:
        with self._lock:
            previous, self._waiter, self._thread = self._waiter, waiter, thread
        if previous is not None:
            previous.set()

    def _run(self, waiter: Waiter) -> None:
        while not waiter.wait(self._period):
            try:
                self._tick()
            except Exception:
                log.exception("A coordinator failed at a tick of its timer; it is called again")
