"""Failures of checkpoints and their counting: Flink's ``CheckpointFailureManager``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Protocol

from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.exceptions import (
    CheckpointDeclinedError,
    CheckpointError,
    StateCheckError,
    causes_of,
)

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties

log = logging.getLogger(__name__)

UNLIMITED_TOLERABLE_FAILURES: Final = 2**31 - 1
UNKNOWN_CHECKPOINT_ID: Final = -1


class CheckpointFailureReason(StrEnum):
    """Reason of an aborted or rejected checkpoint."""

    PERIODIC_SCHEDULER_SHUTDOWN = "periodic_scheduler_shutdown"
    TOO_MANY_CHECKPOINT_REQUESTS = "too_many_checkpoint_requests"
    TOO_MANY_CONCURRENT_CHECKPOINTS = "too_many_concurrent_checkpoints"
    MINIMUM_TIME_BETWEEN_CHECKPOINTS = "minimum_time_between_checkpoints"
    NOT_ALL_REQUIRED_TASKS_RUNNING = "not_all_required_tasks_running"
    IO_EXCEPTION = "io_exception"
    BLOCKING_OUTPUT_EXIST = "blocking_output_exist"
    TRIGGER_CHECKPOINT_FAILURE = "trigger_checkpoint_failure"
    CHECKPOINT_EXPIRED = "checkpoint_expired"
    CHECKPOINT_SUBSUMED = "checkpoint_subsumed"
    CHECKPOINT_DECLINED = "checkpoint_declined"
    CHECKPOINT_DECLINED_TIME_OUT = "checkpoint_declined_time_out"
    CHECKPOINT_DECLINED_TASK_NOT_READY = "checkpoint_declined_task_not_ready"
    CHECKPOINT_DECLINED_TASK_CLOSING = "checkpoint_declined_task_closing"
    CHECKPOINT_DECLINED_TASK_NOT_CHECKPOINTING = "checkpoint_declined_task_not_checkpointing"
    CHECKPOINT_DECLINED_SUBSUMED = "checkpoint_declined_subsumed"
    CHECKPOINT_DECLINED_ALIGNMENT_LIMIT_EXCEEDED = "checkpoint_declined_alignment_limit_exceeded"
    CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER = "checkpoint_declined_on_cancellation_barrier"
    CHECKPOINT_DECLINED_INPUT_END_OF_STREAM = "checkpoint_declined_input_end_of_stream"
    CHECKPOINT_ASYNC_EXCEPTION = "checkpoint_async_exception"
    TASK_CHECKPOINT_FAILURE = "task_checkpoint_failure"
    TASK_FAILURE_DURING_CHECKPOINT = "task_failure_during_checkpoint"
    UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE = "unknown_task_checkpoint_notification_failure"
    FINALIZE_CHECKPOINT_FAILURE = "finalize_checkpoint_failure"
    CHECKPOINT_COORDINATOR_SHUTDOWN = "checkpoint_coordinator_shutdown"
    CHECKPOINT_COORDINATOR_SUSPEND = "checkpoint_coordinator_suspend"
    JOB_FAILURE = "job_failure"
    JOB_FAILOVER_REGION = "job_failover_region"
    ATTEMPT_ENDED = "attempt_ended"
    """The attempt was killed, replaced or closed before the checkpoint completed; this does not count as a failure."""
    UNSPECIFIED = "unspecified"
    """Reason of an exception that has only a message."""

    @property
    def is_pre_flight(self) -> bool:
        """Whether the failure occurred before the checkpoint was triggered in any task."""
        return self in _PRE_FLIGHT

    @property
    def is_tolerated_silently(self) -> bool:
        """Whether the failure does not count towards the tolerable number of failures."""
        return self not in _COUNTED

    @property
    def message(self) -> str:
        """The description of the reason."""
        return _TEXTS.get(self) or self.value.replace("_", " ").capitalize()


_TEXTS = {
    CheckpointFailureReason.IO_EXCEPTION: "An input or output operation of the coordinator failed",
    CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS: "Too many checkpoint requests are queued",
    CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS: "The minimum time between checkpoints has not passed",
    CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING: "Not all required tasks are running",
    CheckpointFailureReason.BLOCKING_OUTPUT_EXIST: "A blocking output exists",
    CheckpointFailureReason.ATTEMPT_ENDED: "The attempt ended before the checkpoint was complete",
}
_PRE_FLIGHT = frozenset(
    {
        CheckpointFailureReason.PERIODIC_SCHEDULER_SHUTDOWN,
        CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS,
        CheckpointFailureReason.TOO_MANY_CONCURRENT_CHECKPOINTS,
        CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS,
        CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING,
        CheckpointFailureReason.IO_EXCEPTION,
        CheckpointFailureReason.BLOCKING_OUTPUT_EXIST,
    }
)
_COUNTED = frozenset(
    {
        CheckpointFailureReason.IO_EXCEPTION,
        CheckpointFailureReason.CHECKPOINT_EXPIRED,
        CheckpointFailureReason.CHECKPOINT_DECLINED_TIME_OUT,
        CheckpointFailureReason.CHECKPOINT_DECLINED,
        CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION,
        CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE,
    }
)


class CheckpointException(CheckpointError):
    """
    A checkpoint failed or was rejected.

    :param reason: Failure reason, or a message if no reason applies.
    :param cause: Exception that caused the failure.
    """

    code = "checkpoint_failed"

    def __init__(
        self, reason: CheckpointFailureReason | str, cause: BaseException | None = None, **attributes: Any
    ) -> None:
        text = reason.message if isinstance(reason, CheckpointFailureReason) else reason
        super().__init__(text if cause is None else f"{text}: {cause}", **attributes)
        is_text = not isinstance(reason, CheckpointFailureReason)
        self.reason = CheckpointFailureReason.UNSPECIFIED if is_text else CheckpointFailureReason(reason)
        self.__cause__ = cause


class FailJobCallback(Protocol):
    """Fails the job when the tolerable number of failures is exceeded; called without a lock, and may raise."""

    def fail_job(self, cause: Exception) -> None:
        """Fail the job."""

    def fail_job_due_to_task_failure(self, cause: Exception, attempt_id: str) -> None:
        """Fail the job, unless the attempt that caused the failure has ended."""


class FailureStatistics(Protocol):
    """Records all failures, including those that do not count towards the tolerable number."""

    def report_failed_checkpoint(self, checkpoint_id: int, error: CheckpointException) -> None:
        """Mark a pending checkpoint as failed."""

    def report_failed_checkpoint_without_in_progress(self, error: CheckpointException) -> None:
        """Count a checkpoint that failed before it had an id."""


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
            # The future of a savepoint reports its failure; the job is not affected.
            if not properties.is_savepoint:
                self._count(failure, error, self._callback.fail_job)
        elif properties.is_synchronous:
            # The task waits for the completion of the savepoint and would wait forever.
            self._callback.fail_job(error)
        else:
            self._count(failure, error, lambda cause: self._callback.fail_job_due_to_task_failure(cause, attempt_id))

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
    chain = list(causes_of(error))
    helpful = [e for e in chain if isinstance(e, StateCheckError) and not isinstance(e, CheckpointException)]
    innermost = (helpful or chain)[-1]
    return f"{type(innermost).__name__}: {innermost}"
