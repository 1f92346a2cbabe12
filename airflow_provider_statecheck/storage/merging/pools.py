"""
Physical files that wait for their next stream.

A pool is used under its manager's lock, which it gives up only while it waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_statecheck.checkpoint.states.handles import CheckpointedStateScope
from airflow_provider_statecheck.exceptions import CoordinatorError
from airflow_provider_statecheck.storage.merging.files import PhysicalFile
from airflow_provider_statecheck.storage.merging.keys import SubtaskKey


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolKey:
    """Streams of equal keys share files."""

    checkpoint_id: int | None
    """``None`` where files are shared over checkpoints."""
    subtask: SubtaskKey | None
    """``None`` where they are shared by subtasks."""
    scope: CheckpointedStateScope


class NonBlockingPool:
    """
    Gives a new file where none waits.

    :param create: Makes a file; it does no I/O.
    """

    def __init__(self, create: Callable[[], PhysicalFile]) -> None:
        self._create = create
        self._idle: list[PhysicalFile] = []
        self._lent: set[PhysicalFile] = set()
        self.is_closed = False

    def acquire(self) -> PhysicalFile:
        """Lend a file to one stream."""
        while self._idle:
            file = self._idle.pop()
            if _takes_more(file):
                return self._lend(file)
        return self._lend(self._create())

    def give_back(self, file: PhysicalFile, max_file_size: int) -> None:
        """Take a file from its stream; one that is full, sealed or closed does not go to another stream."""
        self._lent.discard(file)
        file.is_in_use = False
        if self.is_closed or file.body.size >= max_file_size or not _takes_more(file):
            file.is_closed = True
        else:
            self._idle.append(file)

    def close(self) -> list[PhysicalFile]:
        """Close the files that wait, and those that are lent as soon as they come back; return the former."""
        self.is_closed = True
        idle, self._idle = self._idle, []
        for file in idle:
            file.is_closed = True
        return idle

    def _lend(self, file: PhysicalFile) -> PhysicalFile:
        file.is_in_use = True
        self._lent.add(file)
        return file


class BlockingPool(NonBlockingPool):
    """
    Has a bounded number of open files; a stream waits for one to come back.

    One thread must therefore close a stream before it writes to the next one.

    :param changed: Notified whenever a file comes back or the pool closes.
    :param capacity: Tells how many files there may be now.
    """

    def __init__(
        self, create: Callable[[], PhysicalFile], changed: threading.Condition, capacity: Callable[[], int]
    ) -> None:
        super().__init__(create)
        self._changed = changed
        self._capacity = capacity

    def acquire(self) -> PhysicalFile:
        """Lend a file to one stream, as soon as there is one."""
        self._changed.wait_for(lambda: self.is_closed or bool(self._idle) or len(self._lent) < self._capacity())
        if self.is_closed:
            raise CoordinatorError("Expected an open pool of merged files, found that its checkpoint or manager ended.")
        return super().acquire()


def _takes_more(file: PhysicalFile) -> bool:
    return not (file.is_closed or file.body.is_sealed) and file.is_reusable
