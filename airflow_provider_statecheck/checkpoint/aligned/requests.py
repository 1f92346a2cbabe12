"""Requests for checkpoints, their futures, and stop-with-savepoint."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from threading import Condition
from typing import Protocol

from airflow_provider_statecheck.checkpoint.aligned import transitions
from airflow_provider_statecheck.checkpoint.aligned.completed_checkpoint import CompletedCheckpoint
from airflow_provider_statecheck.checkpoint.aligned.components import CoordinatorComponents
from airflow_provider_statecheck.checkpoint.aligned.plan import ExecutionStatus
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.fencing import ALIGNED_OPERATOR_ID
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, CheckpointRetentionPolicy
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, RequestStatus, SnapshotRequest
from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.exceptions import (
    CheckpointError,
    CheckpointNotFoundError,
    CoordinatorError,
    InvalidConfigurationError,
    StaleAttemptError,
    StateCheckError,
)


class RequestQueue:
    """
    Takes requests for checkpoints.

    :param components: The components of the coordinator.
    """

    def __init__(self, components: CoordinatorComponents) -> None:
        self._components = components

    def ask(
        self, request_key: str, properties: CheckpointProperties, target: str | None, is_periodic: bool
    ) -> SnapshotRequest:
        """
        Add a request; one that is known stays as it is.

        Where the queue is full, it or the least important one fails at once.
        """
        error = CheckpointException(CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS)
        with self._components.transition() as tx:
            known = tx.request(request_key)
            if known is not None:
                return known
            request = SnapshotRequest(
                job_id=self._components.leader.job_id,
                request_key=request_key,
                operator_id=ALIGNED_OPERATOR_ID,
                properties=properties,
                target=target,
                is_periodic=is_periodic,
                requested_at=tx.now,
            )
            admission = self._components.decider.admit(tx.open_requests(ALIGNED_OPERATOR_ID), request)
            refused = admission.dropped if admission.accepted else (*admission.dropped, request)
            if admission.accepted:
                tx.save_request(request)
            for each in refused:
                transitions.fail_request(tx, each, error)
        for each in refused:
            self._components.count_failure(error, properties=each.properties)
        return request


class TriggerKind(StrEnum):
    """How much of a checkpoint is written anew."""

    CONFIGURED = "configured"
    """As much as of a periodic one."""
    FULL = "full"
    """All of it: it names no file of an earlier one."""
    INCREMENTAL = "incremental"
    """What changed, where the state backend can tell."""


def properties_of(
    asked: CheckpointProperties | TriggerKind | None, policy: CheckpointRetentionPolicy
) -> CheckpointProperties:
    """
    Return the properties of a checkpoint that somebody asks for.

    :param policy: After which ends of the job it stays, if only its kind is given.
    :raises InvalidConfigurationError: if nothing is given.
    """
    if isinstance(asked, CheckpointProperties):
        return asked
    if not isinstance(asked, TriggerKind):
        kinds = ", ".join(kind.value for kind in TriggerKind)
        raise InvalidConfigurationError(f"Expected a kind of checkpoint ({kinds}) or its properties, found {asked!r}.")
    return CheckpointProperties.for_checkpoint(policy, is_full=asked is TriggerKind.FULL)


@contextmanager
def as_checkpoint_exception() -> Iterator[None]:
    """
    Give an error of rows or storage a reason.

    :raises CheckpointException: ``IO_EXCEPTION`` with the error as its cause; one that has a reason stays as it is.
    :raises StaleAttemptError: if another leads.
    """
    try:
        yield
    except (CheckpointException, StaleAttemptError):
        raise
    except StateCheckError as error:
        raise CheckpointException(CheckpointFailureReason.IO_EXCEPTION, error) from error


log = logging.getLogger(__name__)

Loader = Callable[[CheckpointRecord], CompletedCheckpoint]
"""Reads a completed checkpoint from storage."""


class FutureWaiter(Protocol):
    """Lets time pass between two looks at the rows."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        ...

    def wait(self, seconds: float) -> None:
        """Return after some time, or sooner."""
        ...


class PollingWaiter:
    """
    Sleeps.

    :param longest: Seconds after which the rows are looked at again.
    """

    def __init__(self, longest: float = 1.0) -> None:
        self._longest = longest

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        """Return after some time, or sooner."""
        time.sleep(min(seconds, self._longest))


class CheckpointFuture:
    """
    What will become of a request; it ends once, with a completed checkpoint or a ``CheckpointException``.

    :param jobs: The rows.
    :param job_id: The job.
    :param request_key: Which request is meant; a future of the same key in another process tells the same.
    :param load: How the completed checkpoint is read.
    :param waiter: How to wait.
    """

    def __init__(
        self, jobs: JobStore, job_id: JobId, request_key: str, load: Loader, waiter: FutureWaiter | None = None
    ) -> None:
        self._jobs = jobs
        self._job_id = job_id
        self._load = load
        self._waiter = waiter or PollingWaiter()
        self._lock = Condition()
        self._ended: CheckpointRecord | CheckpointException | None = None
        self._loaded: CompletedCheckpoint | None = None
        self._callbacks: list[Callable[[CheckpointFuture], object]] = []
        self.request_key = request_key

    @property
    def checkpoint_id(self) -> int | None:
        """Return the id of the checkpoint, ``None`` before it was triggered or if it never is."""
        if isinstance(self._ended, CheckpointRecord):
            return self._ended.checkpoint_id
        with as_checkpoint_exception():
            request = self._jobs.request(self._job_id, self.request_key)
        return None if request is None else request.checkpoint_id

    def fail(self, error: CheckpointException) -> None:
        """End a future of which no row tells; one that has ended stays as it is."""
        self._end(error)

    def done(self) -> bool:
        """
        Look at the rows and tell whether it has ended.

        :raises CheckpointException: ``IO_EXCEPTION`` if the rows do not answer; it has not ended then, so ask again.
        """
        if self._ended is None:
            with as_checkpoint_exception():
                found = self._find_outcome()
            if found is not None:
                self._end(found)
        return self._ended is not None

    def exception(self, timeout: float | None = None) -> CheckpointException | None:
        """
        Wait for the end and return why there is no checkpoint, ``None`` if there is one.

        :param timeout: Seconds to wait at most.
        :raises CheckpointException: ``IO_EXCEPTION`` if the rows do not answer; it has not ended then, so ask again.
        :raises TimeoutError: if it has not ended by then.
        """
        ended = self._wait(timeout)
        return ended if isinstance(ended, CheckpointException) else None

    def result(self, timeout: float | None = None) -> CompletedCheckpoint:
        """
        Wait for the end and return the checkpoint.

        :param timeout: Seconds to wait at most.
        :raises CheckpointException: if there is none, or ``IO_EXCEPTION`` if rows or storage do not answer.
        :raises TimeoutError: if it has not ended by then.
        """
        ended = self._wait(timeout)
        if isinstance(ended, CheckpointException):
            raise ended
        if self._loaded is None:
            with as_checkpoint_exception():
                self._loaded = self._load(ended)
        return self._loaded

    def add_done_callback(self, callback: Callable[[CheckpointFuture], object]) -> None:
        """Call something once with this future when somebody sees that it has ended, or now if it has."""
        with self._lock:
            if self._ended is None:
                self._callbacks.append(callback)
                return
        _run_callback(callback, self)

    def _wait(self, timeout: float | None) -> CheckpointRecord | CheckpointException:
        deadline = None if timeout is None else self._waiter.monotonic() + timeout
        while not self.done() or self._ended is None:
            remaining = float("inf") if deadline is None else deadline - self._waiter.monotonic()
            if remaining <= 0:
                raise TimeoutError(f"Request {self.request_key} has not ended within {timeout} seconds.")
            self._waiter.wait(remaining)
        return self._ended

    def _find_outcome(self) -> CheckpointRecord | CheckpointException | None:
        request = self._jobs.request(self._job_id, self.request_key)
        if request is None:
            return _forgotten(f"There is no request {self.request_key}; it was never made, or its row was pruned.")
        if request.status is RequestStatus.FAILED:
            return failure_of(request)
        if request.status is not RequestStatus.COMPLETED:
            return None
        number = request.checkpoint_id
        found = None if number is None else self._jobs.checkpoint(self._job_id, number)
        return found or _forgotten(f"Checkpoint {number} was completed, but its row was pruned since.")

    def _end(self, ended: CheckpointRecord | CheckpointException) -> None:
        with self._lock:
            if self._ended is not None:
                return
            self._ended = ended
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            _run_callback(callback, self)


def failure_of(request: SnapshotRequest) -> CheckpointException:
    """Return why a request failed."""
    reason = CheckpointFailureReason(request.failure_reason or CheckpointFailureReason.UNSPECIFIED)
    message = request.failure_message
    cause = RuntimeError(message) if message and message != reason.message else None
    return CheckpointException(reason, cause, checkpoint_id=request.checkpoint_id)


def _forgotten(why: str) -> CheckpointException:
    return CheckpointException(CheckpointFailureReason.UNSPECIFIED, CheckpointNotFoundError(why))


def _run_callback(callback: Callable[[CheckpointFuture], object], future: CheckpointFuture) -> None:
    try:
        callback(future)
    except Exception:
        log.exception("What follows the request %s failed", future.request_key)


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
        :raises CoordinatorError: if that was message before.
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
        :raises CoordinatorError: if there is no savepoint yet, or that was message before.
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
