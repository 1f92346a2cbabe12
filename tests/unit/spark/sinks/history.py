"""A job with its coordinator, whose attempts die at any call of a sink, and what its output has to be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import CoordinatorError, CorruptStateError, StorageError
from airflow_provider_statecheck.spark.sinks import ledger
from airflow_provider_statecheck.spark.sinks.target_files import TargetFiles
from airflow_provider_statecheck.testing.faults import FaultPlan
from tests.unit.spark.sinks.attempts import Attempt, Committables

CALLS = ("list_files", "read", "read_range", "size", "write", "upload", "move", "copy", "delete")


@contextmanager
def planned(plan: FaultPlan) -> Iterator[None]:
    """Count the calls of sinks on their storage, and let one fail."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "PARALLEL_CALLS", 1)  # so that one number is always the same call
        for name in CALLS:
            patch.setattr(TargetFiles, name, _counted(getattr(TargetFiles, name), name, plan))
        yield


def _counted(method: Any, name: str, plan: FaultPlan) -> Any:
    def counted(files: TargetFiles, *args: Any) -> Any:
        if name == "move" and not files.is_local:
            return method(files, *args)  # its copy and its deletion are calls of their own
        return plan.carry_out(name, lambda: method(files, *args), StorageError)

    return counted


@dataclass
class Checkpoint:
    id: int
    position: int
    """How many keys of the input are done."""
    committables: Committables
    is_confirmed: bool = False


@dataclass
class Job:
    """Its input are the keys from 1; each increment is one of them, written by two tasks."""

    path: str
    epoch: int = 0
    generation: int = 1
    next_id: int = 1
    completed: list[Checkpoint] = field(default_factory=list)
    """Those of this generation that an attempt may restore."""
    new_attempt: Callable[..., Attempt] = Attempt

    def run(self, until: int) -> None:
        """Run attempts until one succeeds; where the sink refuses what is restored, start over as it says."""
        while True:
            try:
                self.attempt(until)
            except (CorruptStateError, CoordinatorError):
                self.start_over()
            except StorageError:
                continue
            else:
                return

    def attempt(self, until: int, unreadable: int = 0) -> None:
        """
        Run one attempt, which may raise what a fault raises.

        :param unreadable: How many of the newest checkpoints cannot be read this time.
        """
        readable = self.completed[: len(self.completed) - unreadable]
        if not readable and self.completed:
            self.start_over()
        self.epoch += 1
        last = readable[-1] if readable else None
        restored = None if last is None else last.id
        attempt = self.new_attempt(self.path, self.epoch, restored=restored, generation=self.generation).open()
        for checkpoint in readable:
            self._confirm(attempt, checkpoint)
        position = 0 if last is None else last.position
        while position < until:
            position += 1
            self._take(attempt, position)
        attempt.finish()

    def fall_back(self, count: int) -> None:
        """Lose the newest checkpoints for good."""
        del self.completed[max(0, len(self.completed) - count) :]
        if not self.completed:
            self.generation += 1

    def start_over(self) -> None:
        self.completed.clear()
        self.generation += 1

    def _take(self, attempt: Attempt, position: int) -> None:
        written = [*attempt.write(position), *attempt.write(subtask=1)]
        checkpoint = Checkpoint(self.next_id, position, written)
        self.next_id += 1
        self.completed.append(checkpoint)
        self._confirm(attempt, checkpoint)

    def _confirm(self, attempt: Attempt, checkpoint: Checkpoint) -> None:
        if not checkpoint.is_confirmed:
            attempt.commit(checkpoint.id, checkpoint.committables)
            checkpoint.is_confirmed = True
