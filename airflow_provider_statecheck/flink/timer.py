"""Timer that ticks for a coordinator in a thread, as long as periodic checkpoints are started."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event, Thread, current_thread

from airflow_provider_statecheck.exceptions import StaleAttemptError

log = logging.getLogger(__name__)

_SECONDS_AFTER_FAILURE = 1.0
Tick = Callable[[], float | None]
"""Does what is due and returns the seconds until something may be due again, ``None`` if nothing will be."""


class CheckpointTimer:
    """
    Thread that calls a tick when something may be due, and ends with periodic checkpoints or with the leadership.

    :param wait: Waits for an event for a number of seconds at most.
    """

    def __init__(self, wait: Callable[[Event, float], object] = Event.wait) -> None:
        self._wait = wait
        self._run: _Run | None = None

    def start(self, tick: Tick) -> None:
        """Start the timer, or start it again."""
        self.stop()
        self._run = _Run(tick, self._wait)
        self._run.thread.start()

    def wake(self) -> None:
        """Let the timer look at once when something is due."""
        run = self._run
        if run is not None and run.thread is not current_thread():
            run.woken.set()

    def stop(self) -> None:
        """Stop the timer, and wait for the end of its thread unless that calls."""
        run, self._run = self._run, None
        if run is None:
            return
        run.is_stopped = True
        run.woken.set()
        if run.thread is not current_thread():
            run.thread.join()


class _Run:
    def __init__(self, tick: Tick, wait: Callable[[Event, float], object]) -> None:
        self.woken = Event()
        self.is_stopped = False
        self.thread = Thread(target=self._loop, name="statecheck-checkpoint-timer", daemon=True)
        self._tick = tick
        self._wait = wait
        self._seconds: float | None = 0.0

    def _loop(self) -> None:
        while not self.is_stopped and self._seconds is not None:
            self._seconds = self._ticked()
            if self._seconds is not None:
                self._wait(self.woken, self._seconds)
                self.woken.clear()

    def _ticked(self) -> float | None:
        try:
            return self._tick()
        except StaleAttemptError as error:
            log.warning("Periodic checkpoints ended after a change of the leader: %s", error)
            return None
        except Exception:
            # The callback that fails the job has noted its error.
            log.exception("A tick of periodic checkpoints failed; the next one retries")
            return _SECONDS_AFTER_FAILURE
