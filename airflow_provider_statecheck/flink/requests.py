"""Requests for checkpoints and their futures."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from threading import Condition

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.aligned.contents import (
    AlignedContent,
    AlignedStorage,
    CompletedCheckpoint,
    completed_of,
    metadata_of,
)
from airflow_provider_statecheck.checkpoint.aligned.rows import RequestOutcome
from airflow_provider_statecheck.checkpoint.aligned.steps import recorded_failure
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, CheckpointRetentionPolicy
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, RequestStatus
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    InvalidConfigurationError,
    StaleAttemptError,
    StateCheckError,
)

log = logging.getLogger(__name__)


class TriggerKind(StrEnum):
    """The kind of a requested checkpoint."""

    CONFIGURED = "configured"
    """The kind of periodic checkpoints."""
    FULL = "full"
    """A checkpoint that writes all state and refers to no earlier file."""
    INCREMENTAL = "incremental"
    """A checkpoint that writes the changed state, if the state backend supports it."""


def properties_of(
    requested: CheckpointProperties | TriggerKind | None, policy: CheckpointRetentionPolicy
) -> CheckpointProperties:
    """
    Return the properties of a requested checkpoint.

    :param policy: The retention policy of a checkpoint that is requested by kind.
    :raises InvalidConfigurationError: if ``requested`` is neither.
    """
    if isinstance(requested, CheckpointProperties):
        return requested
    if not isinstance(requested, TriggerKind):
        kinds = ", ".join(kind.value for kind in TriggerKind)
        raise InvalidConfigurationError(
            f"Expected a kind of checkpoint ({kinds}) or its properties, found {requested!r}."
        )
    return CheckpointProperties.for_checkpoint(policy, is_full=requested is TriggerKind.FULL)


Pause = Callable[[float], object]
"""A function that waits for a number of seconds, or less."""
_LONGEST_PAUSE_SECONDS = 1.0
"""The longest time between two reads of the rows."""


class CheckpointFuture:
    """
    Future of a request, with a completed checkpoint or a ``CheckpointException`` as its result.

    The result is read from rows: futures with the same key have the same result in every process.
    """

    def __init__(self, futures: CheckpointFutures, request_key: str) -> None:
        self._futures = futures
        self._lock = Condition()
        self._ended: CheckpointRecord | CheckpointException | None = None
        self._loaded: CompletedCheckpoint | None = None
        self._callbacks: list[Callable[[CheckpointFuture], object]] = []
        self.request_key = request_key

    @property
    def checkpoint_id(self) -> int | None:
        """The id of the checkpoint, ``None`` if it was not triggered."""
        if isinstance(self._ended, CheckpointRecord):
            return self._ended.checkpoint_id
        with as_checkpoint_exception():
            request = self._futures.outcome(self.request_key).request
        return None if request is None else request.checkpoint_id

    def fail(self, error: CheckpointException) -> None:
        """Fail a future whose request has no row; a future that is done is unchanged."""
        self._end(error)

    def done(self) -> bool:
        """
        Read the rows and return whether the request has ended.

        :raises CheckpointException: if the database fails, as ``IO_EXCEPTION``; the call may be repeated.
        """
        if self._ended is None:
            with as_checkpoint_exception():
                found = self._find_outcome()
            if found is not None:
                self._end(found)
        return self._ended is not None

    def exception(self, timeout: float | None = None) -> CheckpointException | None:
        """
        Wait for the end and return the error, ``None`` if the checkpoint was completed.

        :param timeout: The longest wait in seconds, ``None`` for no limit.
        :raises CheckpointException: if the database fails, as ``IO_EXCEPTION``; the call may be repeated.
        :raises TimeoutError: if the request has not ended within the timeout.
        """
        ended = self._wait(timeout)
        return ended if isinstance(ended, CheckpointException) else None

    def result(self, timeout: float | None = None) -> CompletedCheckpoint:
        """
        Wait for the end and return the checkpoint.

        :param timeout: The longest wait in seconds, ``None`` for no limit.
        :raises CheckpointException: if the request failed, or ``IO_EXCEPTION`` if the database or the storage fails.
        :raises TimeoutError: if the request has not ended within the timeout.
        """
        ended = self._wait(timeout)
        if isinstance(ended, CheckpointException):
            raise ended
        if self._loaded is None:
            with as_checkpoint_exception():
                self._loaded = self._futures.load(ended)
        return self._loaded

    def add_done_callback(self, callback: Callable[[CheckpointFuture], object]) -> None:
        """Add a callback to run with this future when a call finds it done, or now if it is done."""
        with self._lock:
            if self._ended is None:
                self._callbacks.append(callback)
                return
        _run_callback(callback, self)

    def _wait(self, timeout: float | None) -> CheckpointRecord | CheckpointException:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.done() or self._ended is None:
            remaining = float("inf") if deadline is None else deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError(f"Request {self.request_key} has not ended within {timeout} seconds.")
            self._futures.pause(min(remaining, _LONGEST_PAUSE_SECONDS))
        return self._ended

    def _find_outcome(self) -> CheckpointRecord | CheckpointException | None:
        outcome = self._futures.outcome(self.request_key)
        if outcome.request is None:
            return _forgotten(
                f"Expected request {self.request_key} in the database, found none; it was never made or was pruned."
            )
        if outcome.request.status is RequestStatus.FAILED:
            return recorded_failure(outcome.request)
        if outcome.request.status is not RequestStatus.COMPLETED:
            return None
        number = outcome.request.checkpoint_id
        return outcome.checkpoint or _forgotten(
            f"Expected completed checkpoint {number} in the database, found none; it was pruned."
        )

    def _end(self, ended: CheckpointRecord | CheckpointException) -> None:
        with self._lock:
            if self._ended is not None:
                return
            self._ended = ended
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            _run_callback(callback, self)


class CheckpointFutures:
    """
    The futures that a coordinator has given away, whose callbacks run when it finds them done.

    :param pause: Waits between two reads of the rows.
    """

    def __init__(
        self, rows: AlignedCheckpoints, leader: AttemptRef, storage: AlignedStorage, pause: Pause = time.sleep
    ) -> None:
        self._rows = rows
        self._leader = leader
        self._storage = storage
        self.pause = pause
        self._lock = Condition()
        self._watched: list[CheckpointFuture] = []

    def of(self, request_key: str) -> CheckpointFuture:
        """Return the future of a request, which any process may have made."""
        return CheckpointFuture(self, request_key)

    def outcome(self, request_key: str) -> RequestOutcome:
        """Return the outcome of a request from its row."""
        return self._rows.outcome(self._leader, request_key)

    def watch(self, future: CheckpointFuture) -> None:
        """Run the callbacks of a future when :meth:`settle` finds it done."""
        with self._lock:
            self._watched.append(future)

    def settle(self) -> None:
        """Read the outcome of all watched futures, and forget those that are done."""
        with self._lock:
            watched = tuple(self._watched)
        try:
            ended = [future for future in watched if future.done()]
        except StateCheckError as error:
            log.warning("The outcome of checkpoints could not be read; the next call retries: %s", error)
            return
        with self._lock:
            self._watched = [future for future in self._watched if future not in ended]

    def load(self, record: CheckpointRecord) -> CompletedCheckpoint:
        """Read a completed checkpoint from storage."""
        metadata = metadata_of(record)
        try:
            content = self._storage.read(metadata)
        except CheckpointNotFoundError:
            # The checkpoint was completed, then subsumed and deleted.
            content = AlignedContent()
        return completed_of(record, content, metadata)


def _forgotten(why: str) -> CheckpointException:
    return CheckpointException(CheckpointFailureReason.UNSPECIFIED, CheckpointNotFoundError(why))


def _run_callback(callback: Callable[[CheckpointFuture], object], future: CheckpointFuture) -> None:
    try:
        callback(future)
    except Exception:
        log.exception("A callback of request %s failed", future.request_key)


@contextmanager
def as_checkpoint_exception() -> Iterator[None]:
    """
    Convert errors of the database or the storage.

    :raises CheckpointException: if database or storage fail, as ``IO_EXCEPTION``; a ``CheckpointException`` stays.
    :raises StaleAttemptError: if another leader has taken over.
    """
    try:
        yield
    except (CheckpointException, StaleAttemptError):
        raise
    except StateCheckError as error:
        raise CheckpointException(CheckpointFailureReason.IO_EXCEPTION, error) from error
