"""How somebody learns what became of a checkpoint that was asked for; told by rows, so in any process."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Condition
from typing import Protocol

from airflow_provider_statecheck.checkpoint.coordination.completed_checkpoint import CompletedCheckpoint
from airflow_provider_statecheck.checkpoint.coordination.row_errors import as_checkpoint_exception
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.requests import RequestStatus, SnapshotRequest
from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError

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
                found = self._look()
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
        _tell(callback, self)

    def _wait(self, timeout: float | None) -> CheckpointRecord | CheckpointException:
        deadline = None if timeout is None else self._waiter.monotonic() + timeout
        while not self.done() or self._ended is None:
            remaining = float("inf") if deadline is None else deadline - self._waiter.monotonic()
            if remaining <= 0:
                raise TimeoutError(f"Request {self.request_key} has not ended within {timeout} seconds.")
            self._waiter.wait(remaining)
        return self._ended

    def _look(self) -> CheckpointRecord | CheckpointException | None:
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
            _tell(callback, self)


def failure_of(request: SnapshotRequest) -> CheckpointException:
    """Return why a request failed."""
    reason = CheckpointFailureReason(request.failure_reason or CheckpointFailureReason.UNSPECIFIED)
    said = request.failure_message
    cause = RuntimeError(said) if said and said != reason.message else None
    return CheckpointException(reason, cause, checkpoint_id=request.checkpoint_id)


def _forgotten(why: str) -> CheckpointException:
    return CheckpointException(CheckpointFailureReason.UNSPECIFIED, CheckpointNotFoundError(why))


def _tell(callback: Callable[[CheckpointFuture], object], future: CheckpointFuture) -> None:
    try:
        callback(future)
    except Exception:
        log.exception("What follows the request %s failed", future.request_key)
