"""
What an attempt is working on, at which rate, and what checkpoints cost it, for pages.

The work is a step, an item of a loop or an increment.
Checkpoints tell it with their figures. Work that takes longer than some seconds is reported in between, so that a page
names the step that takes hours, and many short steps cost no calls.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent

log = logging.getLogger(__name__)

REPORTED_AFTER_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Work:
    """A step, an item of a loop or an increment that an attempt works on."""

    name: str = ""
    """Empty between them."""
    begins_after: float = 0.0
    """Time from the registration of the attempt to the start, in seconds."""


_NONE: Final = Work()


def _unknown() -> float | None:
    return None


class WorkInProgress:
    """
    Knows what an attempt works on, and reports it if it takes long.

    :param send: Sends the figures to the coordinator, also from a thread of this class.
    :param monotonic: Clock, read first at the registration of the attempt.
    :param start_timer: Calls a function after a number of seconds, and returns the function that prevents this.
    """

    def __init__(
        self,
        send: Callable[[CheckpointSummary], None],
        monotonic: Callable[[], float],
        start_timer: Callable[[float, Callable[[], None]], Callable[[], None]] | None = None,
    ) -> None:
        self.restored: CheckpointSummary | None = None
        """What the attempt has restored so far; ``None`` if it has restored nothing."""
        self.rows_per_second: Callable[[], float | None] = _unknown
        """Returns the rate of the work."""
        self.checkpoint_share: Callable[[], float | None] = _unknown
        """Returns the part of the time that checkpointing has taken."""
        self._send = send
        self._monotonic = monotonic
        self._begin = monotonic()
        self._start_timer = start_timer or _start_thread
        # Reentrant, because a signal may end the attempt while its thread has the lock.
        self._lock = threading.RLock()
        self._cancel: Callable[[], None] | None = None
        self._current = self._told = _NONE
        self._has_ended = False

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        """Let the block be the work, until it ends or contains other work."""
        around = self._current
        self._set(Work(name, self._monotonic() - self._begin))
        try:
            yield
        finally:
            self._set(around)

    def report_restored(self, summary: CheckpointSummary) -> None:
        """
        Report at once what the attempt has restored, and its work.

        :raises StaleAttemptError: if a newer attempt has taken over.
        """
        self.restored = summary
        work = self._current
        self._send(self._figures(summary, work))
        self.told(work)

    def added_to(self, content: CheckpointContent) -> tuple[CheckpointContent, Work]:
        """Return the content of a checkpoint with the work in its figures, and the work."""
        work = self._current
        if content.summary is None:
            return content, self._told
        return replace(content, summary=self._figures(content.summary, work)), work

    def told(self, work: Work) -> None:
        """Note that the coordinator knows about some work."""
        self._told = work

    def end(self) -> None:
        """Report no more."""
        with self._lock:
            self._has_ended = True
            if self._cancel is not None:
                self._cancel()

    def at_end(self) -> CheckpointSummary | None:
        """Return the figures of the attempt at its end; ``None`` if there are none."""
        figures = self._figures(self.restored or CheckpointSummary(), _NONE)
        return None if figures == CheckpointSummary() else figures

    def _figures(self, summary: CheckpointSummary, work: Work) -> CheckpointSummary:
        return replace(
            summary,
            computing=work.name,
            computing_after=work.begins_after,
            rows_per_second=self.rows_per_second(),
            checkpoint_share=self.checkpoint_share(),
        )

    def _set(self, work: Work) -> None:
        with self._lock:
            self._current = work
            if self._cancel is None and not self._has_ended and work != self._told:
                self._cancel = self._start_timer(REPORTED_AFTER_SECONDS, self._report)

    def _report(self) -> None:
        with self._lock:
            self._cancel = None
            work = self._current
            if self._has_ended or work == self._told:
                return
        try:
            self._send(self._figures(self.restored or CheckpointSummary(), work))
        except Exception as error:
            # It is for display only. The next call of the stage itself meets the same error.
            log.debug("The progress could not be reported: %s", error)
        self.told(work)
        # The work may have changed during the call.
        self._set(self._current)


def _start_thread(seconds: float, function: Callable[[], None]) -> Callable[[], None]:
    timer = threading.Timer(seconds, function)
    timer.daemon = True
    timer.name = "statecheck-progress"
    timer.start()
    return timer.cancel
