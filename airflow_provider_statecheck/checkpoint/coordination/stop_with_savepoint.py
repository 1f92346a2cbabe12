"""Stopping a job with a savepoint, step by step: Flink's ``StopWithSavepointTerminationManager``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from threading import Condition

from airflow_provider_statecheck.checkpoint.coordination.plan import ExecutionStatus
from airflow_provider_statecheck.exceptions import CheckpointError, CoordinatorError, InvalidConfigurationError

log = logging.getLogger(__name__)


class StopWithSavepoint:
    """
    What becomes of a job that is to stop; first the savepoint has to be there, then the tasks have to end.

    :param restart_scheduler: Lets the job go on as before, for there is no savepoint.
    :param fail_job: Restarts the job, for some tasks have stopped and others have not.
    """

    def __init__(self, restart_scheduler: Callable[[], None], fail_job: Callable[[Exception], None]) -> None:
        self._restart_scheduler = restart_scheduler
        self._fail_job = fail_job
        self._changed = Condition()
        self._pointer: str | None = None
        self._error: Exception | None = None
        self._is_ended = False

    def done(self) -> bool:
        """Tell whether it has come to its end, good or bad."""
        return self._is_ended

    def result(self, timeout: float | None = None) -> str:
        """
        Wait for the end and return where the savepoint is.

        :raises CheckpointError: if the job did not stop; the message says where the savepoint is if there is one.
        :raises TimeoutError: if it has not ended by then.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_ended, timeout):
                raise TimeoutError(f"The job has not stopped with a savepoint within {timeout} seconds.")
        if self._pointer is None or self._error is not None:
            raise self._error or CoordinatorError("Expected a savepoint or an error, found neither.")
        return self._pointer

    def handle_savepoint_creation(self, pointer: str | None = None, error: Exception | None = None) -> None:
        """
        Say what became of the savepoint.

        :param pointer: Where it is.
        :param error: Why there is none.
        :raises InvalidConfigurationError: unless exactly one of them is given.
        :raises CoordinatorError: if that was said before.
        """
        if (pointer is None) == (error is None):
            raise InvalidConfigurationError("Expected either a savepoint or an error, found both or neither.")
        with self._changed:
            if self._is_ended or self._pointer is not None:
                raise CoordinatorError("Expected to hear of the savepoint once, found a second time.")
            self._pointer = pointer
        if error is not None:
            self._end(error)
            self._restart_scheduler()

    def handle_executions_termination(self, statuses: Sequence[ExecutionStatus]) -> None:
        """
        Say how the tasks ended.

        :param statuses: Of all tasks.
        :raises CoordinatorError: if there is no savepoint yet, or that was said before.
        """
        with self._changed:
            if self._is_ended or self._pointer is None:
                raise CoordinatorError(
                    "Expected to hear how the tasks ended after the savepoint and once, found it out of order."
                )
        unfinished = sorted({status.value for status in statuses if status is not ExecutionStatus.FINISHED})
        if not unfinished:
            self._end(None)
            return
        error = CheckpointError(
            f"Expected all tasks to finish after the savepoint {self._pointer}, found {', '.join(unfinished)}; the savepoint "
            f"is kept, the job starts again.",
            pointer=self._pointer,
        )
        self._end(error)
        self._fail_job(error)

    def _end(self, error: Exception | None) -> None:
        with self._changed:
            self._error = error
            self._is_ended = True
            self._changed.notify_all()
