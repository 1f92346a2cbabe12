"""Checkpoint ids of a job: Flink's ``CheckpointIDCounter``."""

from __future__ import annotations

from airflow_provider_statecheck.checkpoint.aligned.rows import CoordinatorRows, CountIds
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import JobStatus
from airflow_provider_statecheck.exceptions import CoordinatorError, InvalidConfigurationError


class CheckpointIDCounter:
    """
    Counter of checkpoint ids in the row of a job, starting at 1, which also counts the checkpoints of its stages.

    Each id is returned once, across all processes. If the counter raises, no checkpoint is triggered.

    :param rows: The rows of the job.
    :param leader: The leader of the checkpoints.
    """

    def __init__(self, rows: CoordinatorRows, leader: AttemptRef) -> None:
        self._rows = rows
        self._leader = leader
        self._is_started = False
        self._is_shut_down = False
        self._has_drawn = False

    def start(self) -> None:
        """
        Start the counter; a second call has no effect.

        :raises CoordinatorError: after the shutdown.
        :raises CheckpointNotFoundError: if the job does not exist.
        """
        if self._is_shut_down:
            raise _not_in_use("it was shut down; create a new one")
        self._count()
        self._is_started = True

    def get_and_increment(self) -> int:
        """
        Return the next id.

        :raises CoordinatorError: before the start and after the shutdown.
        """
        self._require_in_use()
        self._has_drawn = True
        return self._count(draws=True)

    def get(self) -> int:
        """
        Return the next id without drawing it.

        :raises CoordinatorError: before the start and after the shutdown.
        """
        self._require_in_use()
        return self._count()

    def set_count(self, count: int) -> None:
        """
        Set the next id, as the restore of a savepoint does.

        Before the first draw, a number below the next id has no effect: ids are never repeated.

        :param count: The next id, at least 1.
        :raises CoordinatorError: if the number is below the next id after the first draw, before the start, or after the
            shutdown.
        :raises InvalidConfigurationError: if the number is below 1.
        """
        self._require_in_use()
        if count < 1:
            raise InvalidConfigurationError(f"Expected the next checkpoint id to be at least 1, found {count}.")
        following = self._count(at_least=count)
        if count < following and self._has_drawn:
            raise CoordinatorError(
                f"Expected the next checkpoint id to be {following} or more once a checkpoint was triggered, found {count}; "
                f"set it before the first trigger."
            )

    def shutdown(self, status: JobStatus) -> None:
        """
        Stop the counter; a second call has no effect.

        The count remains with any status of the job: ids are never repeated.
        """
        self._is_shut_down = True

    def _count(self, at_least: int = 1, *, draws: bool = False) -> int:
        return self._rows.count_ids(CountIds(leader=self._leader, at_least=at_least, draws=draws))

    def _require_in_use(self) -> None:
        if self._is_shut_down:
            raise _not_in_use("it was shut down; create a new one")
        if not self._is_started:
            raise _not_in_use("it was not started; call start() first")


def _not_in_use(why: str) -> CoordinatorError:
    return CoordinatorError(f"Expected a counter of checkpoint ids that is in use, found that {why}.")
