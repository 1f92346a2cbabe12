"""A job with its coordinator, whose attempts die at any step of a sink, and what its output has to be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from airflow_provider_statecheck.exceptions import CoordinatorError, CorruptStateError, StorageError
from airflow_provider_statecheck.spark.sinks.sink import Sink
from tests.unit.spark.sinks.two_phase.attempts import Attempt, Committables


@dataclass
class Checkpoint:
    id: int
    epoch: int
    position: int
    """How many keys of the input are done."""
    open_commits: dict[int, Committables]
    """Those of this checkpoint and of ones before whose commit nobody had confirmed."""


@dataclass
class Job:
    """
    Its input are the keys from 1; each increment is one of them, written by two tasks.

    :param make: Makes the sink of an attempt.
    """

    make: Callable[[], Sink]
    epoch: int = 0
    generation: int = 1
    next_id: int = 1
    completed: list[Checkpoint] = field(default_factory=list)
    """Those of this generation that an attempt may restore."""

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
        attempt = self._opened(last)
        unconfirmed = {} if last is None else dict(last.open_commits)
        self._commit(attempt, unconfirmed)
        for position in range(1 + (0 if last is None else last.position), until + 1):
            unconfirmed[self.next_id] = [*attempt.write(position), *attempt.write(subtask=1)]
            # The name of a fault stands for a driver that dies with it: what it has open is in the checkpoint alone.
            self.completed.append(Checkpoint(self.next_id, self.epoch, position, dict(unconfirmed)))
            self.next_id += 1
            self._commit(attempt, unconfirmed)
        attempt.finish()

    def fall_back(self, count: int) -> None:
        """Lose the newest checkpoints for good."""
        del self.completed[max(0, len(self.completed) - count) :]
        if not self.completed:
            self.generation += 1

    def start_over(self) -> None:
        self.completed.clear()
        self.generation += 1

    def _opened(self, last: Checkpoint | None) -> Attempt:
        return Attempt(
            self.make,
            self.epoch,
            restored=None if last is None else last.id,
            restored_epoch=None if last is None else last.epoch,
            generation=self.generation,
        ).open()

    def _commit(self, attempt: Attempt, unconfirmed: dict[int, Committables]) -> None:
        for checkpoint_id in sorted(unconfirmed):
            attempt.commit(checkpoint_id, unconfirmed[checkpoint_id])
        unconfirmed.clear()
