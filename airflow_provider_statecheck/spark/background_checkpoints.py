"""Checkpoints that a thread takes while the stage computes on, where answers take seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """State of a stage at one moment; nothing in it changes afterwards."""

    content: CheckpointContent
    compared: tuple[tuple[str, ...], dict[str, Any]]
    """What tells whether the stage has changed since."""
    unsaved_bytes: int = 0
    """Size of the snapshots that no earlier capture has."""
    unsaved_seconds: float = 0.0
    """Time to write them."""


class BackgroundCheckpoints:
    """
    Takes the newest capture as soon as the checkpoint before it has ended; older ones that still wait are left out.

    A capture contains all that earlier ones contain, so nothing is lost by leaving one out.

    :param take: Function that takes a checkpoint of a capture and returns whether it was completed; called in another
        thread.
    """

    def __init__(self, take: Callable[[Capture], bool]) -> None:
        self._take = take
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="statecheck-checkpoint")
        self._waiting: Capture | None = None
        self._untaken: list[Capture] = []
        self._run: Future[None] | None = None

    def offer(self, capture: Capture) -> None:
        """
        Take a checkpoint of a capture, without waiting for it.

        :raises StateCheckError: if the stage must end because of an earlier checkpoint.
        """
        with self._lock:
            self._waiting = capture
            is_running = self._run is not None
            if not is_running:
                self._run = self._thread.submit(self._take_newest)
        if is_running:
            self._raise_failure()

    def withdraw(self) -> list[Capture]:
        """Return the captures of which no checkpoint was taken, and forget them."""
        with self._lock:
            withdrawn = [*self._untaken, *([self._waiting] if self._waiting else [])]
            self._untaken, self._waiting = [], None
        return withdrawn

    def settle(self) -> None:
        """
        Wait for the end of all checkpoints.

        :raises StateCheckError: if the stage must end because of one of them.
        """
        with self._lock:
            run = self._run
        if run is not None:
            run.result()

    def _raise_failure(self) -> None:
        run = self._run
        if run is not None and run.done():
            run.result()

    def _take_newest(self) -> None:
        while True:
            with self._lock:
                capture, self._waiting = self._waiting, None
                if capture is None:
                    self._run = None
                    return
            if not self._take(capture):
                with self._lock:
                    self._untaken.append(capture)
