"""Counting of checkpoint failures: Flink's ``CheckpointFailureManager``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final, Protocol

from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.messages import require
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.exceptions import CheckpointDeclinedError, StateCheckError

log = logging.getLogger(__name__)

UNLIMITED_TOLERABLE_FAILURES: Final = 2**31 - 1
UNKNOWN_CHECKPOINT_ID: Final = -1


class FailJobCallback(Protocol):
    """Fails the job when the tolerable number of failures is exceeded; called without a lock, and may raise."""

    def fail_job(self, cause: Exception) -> None:
        """Fail the job."""
        ...

    def fail_job_due_to_task_failure(self, cause: Exception, attempt_id: str) -> None:
        """Fail the job, unless the attempt that caused the failure has ended."""
        ...


class FailureStatistics(Protocol):
    """Records all failures, including those that do not count towards the tolerable number."""

    def report_failed_checkpoint(self, checkpoint_id: int, error: CheckpointException) -> None:
        """Mark a pending checkpoint as failed."""
        ...

    def report_failed_checkpoint_without_in_progress(self, error: CheckpointException) -> None:
        """Count a checkpoint that failed before it had an id."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedFailure:
    """A failed checkpoint that counts towards the tolerable number."""

    checkpoint_id: int
    """The id, -1 if the checkpoint failed before it had one."""
    reason: CheckpointFailureReason
    root_cause: str
    operator: str = ""
    """The operator that failed it, empty for the coordinator."""

    def __str__(self) -> str:
        checkpoint = "one without id" if self.checkpoint_id == UNKNOWN_CHECKPOINT_ID else str(self.checkpoint_id)
        operator = f" of operator {self.operator!r}" if self.operator else ""
        return f"{checkpoint}{operator} ({self.reason.value}): {self.root_cause}"


class CheckpointFailureManager:
    """
    Counts consecutive checkpoint failures and fails the job when there are too many.

    The count is kept in memory: a new coordinator starts at 0.

    :param tolerable: The number of consecutive failures to tolerate, ``UNLIMITED_TOLERABLE_FAILURES`` for no limit.
    :param callback: The callback that fails the job.
    :param statistics: The statistics that record every failure.
    :raises InvalidConfigurationError: if ``tolerable`` is negative.
    """

    def __init__(self, tolerable: int, callback: FailJobCallback, statistics: FailureStatistics | None = None) -> None:
        require("tolerable_failed_checkpoints", tolerable, lambda n: n >= 0, "0 or more")
        self._tolerable = tolerable
        self._callback = callback
        self._statistics = statistics
        self._lock = Lock()
        self._failures: list[CountedFailure] = []
        self._counted_ids: set[int] = set()
        self._last_succeeded_id = UNKNOWN_CHECKPOINT_ID

    def handle_checkpoint_exception(
        self,
        error: CheckpointException,
        *,
        properties: CheckpointProperties,
        checkpoint_id: int = UNKNOWN_CHECKPOINT_ID,
        attempt_id: str | None = None,
        operator: str = "",
    ) -> None:
        """
        Count a failed checkpoint and fail the job if the tolerable number is exceeded.

        :param error: The cause of the failure.
        :param properties: The properties of the checkpoint.
        :param checkpoint_id: The id, ``UNKNOWN_CHECKPOINT_ID`` if it had none yet.
        :param attempt_id: The attempt that failed the checkpoint, ``None`` for the coordinator.
        :param operator: The name of the operator that failed it, for messages.
        :raises ValueError: if the error has no valid reason.
        """
        self._report(checkpoint_id, error)
        # An unknown reason would not count, and failures would go unnoticed.
        reason = CheckpointFailureReason(error.reason)
        failure = CountedFailure(
            checkpoint_id=checkpoint_id, reason=reason, root_cause=root_cause(error), operator=operator
        )
        if reason.is_pre_flight or attempt_id is None:
            self._handle_coordinator_level(failure, error, properties)
        else:
            self._handle_task_level(failure, error, properties, attempt_id)

    def handle_checkpoint_success(self, checkpoint_id: int) -> None:
        """Reset the count, unless a later checkpoint was completed before."""
        with self._lock:
            if checkpoint_id > self._last_succeeded_id:
                self._last_succeeded_id = checkpoint_id
                self._failures.clear()
                self._counted_ids = {counted for counted in self._counted_ids if counted > checkpoint_id}

    def _report(self, checkpoint_id: int, error: CheckpointException) -> None:
        if self._statistics is None:
            return
        try:
            if checkpoint_id == UNKNOWN_CHECKPOINT_ID:
                self._statistics.report_failed_checkpoint_without_in_progress(error)
            else:
                self._statistics.report_failed_checkpoint(checkpoint_id, error)
        except StateCheckError:
            # Failing to record statistics must not change the count.
            log.warning("The failure of checkpoint %s was not recorded in the statistics", checkpoint_id, exc_info=True)

    def _handle_coordinator_level(
        self, failure: CountedFailure, error: CheckpointException, properties: CheckpointProperties
    ) -> None:
        # The future of a savepoint reports its failure; the job is not affected.
        if not properties.is_savepoint:
            self._count(failure, error, self._callback.fail_job)

    def _handle_task_level(
        self, failure: CountedFailure, error: CheckpointException, properties: CheckpointProperties, attempt_id: str
    ) -> None:
        if properties.is_savepoint and properties.is_synchronous:
            # The task waits for the completion of the savepoint and would wait forever.
            self._callback.fail_job(error)
            return
        self._count(failure, error, lambda cause: self._callback.fail_job_due_to_task_failure(cause, attempt_id))

    def _count(
        self, failure: CountedFailure, error: CheckpointException, fail_job: Callable[[Exception], None]
    ) -> None:
        if self._tolerable == UNLIMITED_TOLERABLE_FAILURES or failure.reason.is_tolerated_silently:
            return
        with self._lock:
            exceeding = self._add(failure)
        if exceeding:
            fail_job(self._threshold_error(exceeding, error))

    def _add(self, failure: CountedFailure) -> tuple[CountedFailure, ...]:
        if failure.checkpoint_id != UNKNOWN_CHECKPOINT_ID:
            if failure.checkpoint_id <= self._last_succeeded_id or failure.checkpoint_id in self._counted_ids:
                return ()
            self._counted_ids.add(failure.checkpoint_id)
        self._failures.append(failure)
        if len(self._failures) <= self._tolerable:
            return ()
        exceeding = tuple(self._failures)
        self._failures.clear()
        return exceeding

    def _threshold_error(
        self, failures: Sequence[CountedFailure], error: CheckpointException
    ) -> CheckpointDeclinedError:
        listed = "; ".join(str(failure) for failure in failures)
        exceeded = CheckpointDeclinedError(
            f"Exceeded tolerable failure threshold: {len(failures)} checkpoints in a row failed, "
            f"tolerable_failed_checkpoints is {self._tolerable}. The failed checkpoints: {listed}",
            failures=tuple(failures),
            reason=error.reason,
        )
        exceeded.__cause__ = error
        return exceeded


def root_cause(error: BaseException) -> str:
    """Return the type and message of the innermost project error in the chain of causes, or of the innermost error."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    helpful = [e for e in chain if isinstance(e, StateCheckError) and not isinstance(e, CheckpointException)]
    innermost = (helpful or chain)[-1]
    return f"{type(innermost).__name__}: {innermost}"
