"""Checkpoint ids of a job: Flink's ``CheckpointIDCounter``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.properties import JobStatus
from airflow_provider_statecheck.checkpoint.store import JobStore, JobTransaction
from airflow_provider_statecheck.exceptions import CoordinatorError, InvalidConfigurationError


class CheckpointIDCounter(Protocol):
    """
    Gives out 1, 2, 3 and so on, each once, whoever asks and in however many processes.

    A failing counter raises a ``CoordinatorError``; whoever wanted to trigger a checkpoint has none then.
    """

    def start(self) -> None:
        """
        Begin; beginning twice is beginning once.

        :raises CoordinatorError: after a shutdown.
        :raises CheckpointNotFoundError: if there is no such job.
        """
        ...

    def get_and_increment(self) -> int:
        """
        Return the next id.

        :raises CoordinatorError: before the start and after the shutdown.
        """
        ...

    def get(self) -> int:
        """
        Return the id that comes next.

        :raises CoordinatorError: before the start and after the shutdown.
        """
        ...

    def set_count(self, count: int) -> None:
        """
        Go on at a number, as the restore of a savepoint does.

        A number below the next id is accepted before the first id was drawn here, and changes nothing then: an id that was
        given out never comes again.

        :raises CoordinatorError: for a number below the next id afterwards; before the start and after the shutdown.
        :raises InvalidConfigurationError: for a number below 1.
        """
        ...

    def shutdown(self, status: JobStatus) -> None:
        """
        End; ending twice is ending once.

        The count stays, however the job ended: an id that was given out never comes again.
        """
        ...


class JobIDCounter(ABC):
    """
    The count in the row of a job; a subclass knows how the row is changed.

    :param jobs: The rows.
    :param job_id: The job.
    """

    def __init__(self, jobs: JobStore, job_id: JobId) -> None:
        self._jobs = jobs
        self._job_id = job_id
        self._is_started = False
        self._is_shut_down = False
        self._has_drawn = False

    def start(self) -> None:
        """Begin; beginning twice is beginning once."""
        if self._is_shut_down:
            raise _not_in_use("it was shut down; make a new one")
        with self._jobs.transaction(self._job_id):
            self._is_started = True

    def get_and_increment(self) -> int:
        """Return the next id."""
        with self._jobs.transaction(self._job_id) as tx:
            return self.draw(tx)

    def draw(self, tx: JobTransaction) -> int:
        """
        Return the next id as part of a transition of the job.

        :raises CoordinatorError: before the start and after the shutdown.
        """
        self._require_in_use()
        self._has_drawn = True
        return tx.draw_checkpoint_id()

    def get(self) -> int:
        """Return the id that comes next."""
        self._require_in_use()
        with self._jobs.transaction(self._job_id) as tx:
            return tx.job.next_checkpoint_id

    def set_count(self, count: int) -> None:
        """Go on at a number unless it is too low."""
        self._require_in_use()
        if count < 1:
            raise InvalidConfigurationError(f"Expected the next checkpoint id to be at least 1, found {count}.")
        with self._jobs.transaction(self._job_id) as tx:
            following = tx.job.next_checkpoint_id
            if count < following and self._has_drawn:
                raise CoordinatorError(
                    f"Expected the next checkpoint id to be {following} or more once a checkpoint was triggered, found "
                    f"{count}; set it before the first trigger."
                )
            if count > following:
                self._raise_to(tx, count)

    def shutdown(self, status: JobStatus) -> None:
        """End; ending twice is ending once."""
        self._is_shut_down = True

    @abstractmethod
    def _raise_to(self, tx: JobTransaction, count: int) -> None:
        """Make a higher number the next id."""

    def _require_in_use(self) -> None:
        if self._is_shut_down:
            raise _not_in_use("it was shut down; make a new one")
        if not self._is_started:
            raise _not_in_use("it was not started; call start() first")


def _not_in_use(why: str) -> CoordinatorError:
    return CoordinatorError(f"Expected a counter of checkpoint ids that is in use, but {why}.")
