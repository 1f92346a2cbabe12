"""Peak memory of the Python processes of Spark's tasks."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

import psutil

_PAUSE_SECONDS = 0.1
_MB = 1024 * 1024


class PeakMemory:
    """
    Context manager that monitors the child processes of this process.

    :param watch: Whether to monitor.
    """

    def __init__(self, *, watch: bool) -> None:
        self._thread = threading.Thread(target=self._watch) if watch else None
        self._is_over = threading.Event()
        self.peak_mb = 0.0

    def __enter__(self) -> Self:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(_PAUSE_SECONDS):
            self.peak_mb = max(self.peak_mb, *(_resident_mb(each) for each in psutil.Process().children(True)), 0.0)


def _resident_mb(process: psutil.Process) -> float:
    try:
        return process.memory_info().rss / _MB if "python" in process.name() else 0.0
    except psutil.NoSuchProcess:
        return 0.0
