"""Tolerated checkpoint failures: Flink's ``CheckpointFailureManager``."""

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
    """What is done when no more failures are borne; called without any lock, and it may raise."""

    def fail_job(self, cause: Exception) -> None:
        """Fail the job."""
        ...

    def fail_job_due_to_task_failure(self, cause: Exception, attempt_id: str) -> None:
        """Fail the job, unless the try of the task that caused it is over."""
        ...


class FailureStatistics(Protocol):
    """Where failures are counted for people, whether or not they count towards the tolerable number."""

    def report_failed_checkpoint(self, checkpoint_id: int, error: CheckpointException) -> None:
        """Mark a pending checkpoint as failed."""
        ...

    def report_failed_checkpoint_without_in_progress(self, error: CheckpointException) -> None:
        """Count a checkpoint that failed before it had an id."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedFailure:
    """A failed checkpoint that counted."""

    checkpoint_id: int
    """-1 if it failed before it had an id."""
    reason: CheckpointFailureReason
    root_cause: str
    operator: str = ""
    """Whose failure it was, empty for the coordinator's own."""

    def __str__(self) -> str:
        checkpoint = "one without id" if self.checkpoint_id == UNKNOWN_CHECKPOINT_ID else str(self.checkpoint_id)
        operator = f" of operator {self.operator!r}" if self.operator else ""
        return f"{checkpoint}{operator} ({self.reason.value}): {self.root_cause}"


class CheckpointFailureManager:
    """
    Counts failed checkpoints without a completed one between them, and fails the job when they are too many.

    It counts in memory: a new coordinator begins at nothing.

    :param tolerable: How many may fail; ``UNLIMITED_TOLERABLE_FAILURES`` for any number.
    :param callback: How the job is failed.
    :param statistics: Where every failure is reported first.
    :raises InvalidConfigurationError: for a negative number.
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
        Take note of a checkpoint that failed, and fail the job if it is one too many.

        :param error: Why it failed.
        :param properties: What kind of checkpoint it was.
        :param checkpoint_id: Its id, ``UNKNOWN_CHECKPOINT_ID`` if it had none yet.
        :param attempt_id: The try of the task that failed it, ``None`` for the coordinator itself.
        :param operator: The operator that failed it, for people.
        :raises ValueError: if the reason is none.
        """
        self._report(checkpoint_id, error)
        # Anything that is no reason would count as nothing and hide failures for ever.
        reason = CheckpointFailureReason(error.reason)
        failure = CountedFailure(
            checkpoint_id=checkpoint_id, reason=reason, root_cause=root_cause(error), operator=operator
        )
        if reason.is_pre_flight or attempt_id is None:
            self._handle_coordinator_level(failure, error, properties)
        else:
            self._handle_task_level(failure, error, properties, attempt_id)

    def handle_checkpoint_success(self, checkpoint_id: int) -> None:
        """Start counting anew, unless a later checkpoint was completed before."""
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
            # A failure counts whether it can be told or not.
            log.warning(
                "The failure of checkpoint %s could not be told to the statistics", checkpoint_id, exc_info=True
            )

    def _handle_coordinator_level(
        self, failure: CountedFailure, error: CheckpointException, properties: CheckpointProperties
    ) -> None:
        # Whoever asked for a savepoint is told by its future; the job has no part in it.
        if not properties.is_savepoint:
            self._count(failure, error, self._callback.fail_job)

    def _handle_task_level(
        self, failure: CountedFailure, error: CheckpointException, properties: CheckpointProperties, attempt_id: str
    ) -> None:
        if properties.is_savepoint and properties.is_synchronous:
            # The task waits for the savepoint to be complete; nothing else ends its waiting.
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
    """Return, with its kind, the innermost cause of an error that says what to do, else the innermost one."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    helpful = [e for e in chain if isinstance(e, StateCheckError) and not isinstance(e, CheckpointException)]
    innermost = (helpful or chain)[-1]
    return f"{type(innermost).__name__}: {innermost}"
