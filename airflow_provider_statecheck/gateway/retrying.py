"""Retries of calls: after transient failures, and of registrations while another attempt runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from airflow_provider_statecheck.checkpoint.gateway import CheckpointCoordinatorGateway
from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.messages import (
    AcknowledgeCheckpoint,
    AcknowledgeReply,
    AdoptAttempt,
    AttemptGrant,
    ConfirmCommits,
    ConfirmDiscards,
    ConfirmRestore,
    DeclineCheckpoint,
    FinishAttempt,
    OpenEffects,
    PendingCheckpoint,
    RegisterAttempt,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, JobRecord, OnOverlap, RowsVersion
from airflow_provider_statecheck.checkpoint.store import CheckpointPage, JobView, LatestCheckpoints
from airflow_provider_statecheck.exceptions import ConcurrentAttemptError, CoordinatorError

log = logging.getLogger(__name__)

Reply = TypeVar("Reply")

DEFAULT_PAUSES_SECONDS = (0.1, 0.5, 2.0, 5.0)


class RetryingGateway:
    """
    A gateway that retries calls after retryable errors.

    :param gateway: The wrapped gateway.
    :param pauses_seconds: Pause before each retry, in seconds; their number is the number of retries.
    :param sleep: Function that sleeps for a number of seconds.
    """

    def __init__(
        self,
        gateway: CheckpointCoordinatorGateway,
        pauses_seconds: tuple[float, ...] = DEFAULT_PAUSES_SECONDS,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._gateway = gateway
        self._pauses = pauses_seconds
        self._sleep = sleep

    def register(self, request: RegisterAttempt) -> AttemptGrant:
        """Register an attempt, fence all earlier attempts of the operator, and return the candidates for a restore."""
        return self._retry(lambda: self._gateway.register(request))

    def adopt(self, request: AdoptAttempt) -> None:
        """Take over an attempt that still runs, in a later try of the same task."""
        self._retry(lambda: self._gateway.adopt(request))

    def confirm_restore(self, request: ConfirmRestore) -> None:
        """Record the restored checkpoint and the candidates that could not be restored."""
        self._retry(lambda: self._gateway.confirm_restore(request))

    def trigger(self, request: TriggerCheckpoint) -> PendingCheckpoint:
        """Allocate the id of a new checkpoint."""
        return self._retry(lambda: self._gateway.trigger(request))

    def acknowledge(self, request: AcknowledgeCheckpoint) -> AcknowledgeReply:
        """Complete a checkpoint whose files are all on storage."""
        return self._retry(lambda: self._gateway.acknowledge(request))

    def decline(self, request: DeclineCheckpoint) -> OpenEffects:
        """Abort a pending checkpoint."""
        return self._retry(lambda: self._gateway.decline(request))

    def confirm_discards(self, request: ConfirmDiscards) -> None:
        """Record that the files of ended checkpoints were deleted."""
        self._retry(lambda: self._gateway.confirm_discards(request))

    def confirm_commits(self, request: ConfirmCommits) -> OpenEffects:
        """Record that a sink committed the output of checkpoints and of all earlier ones."""
        return self._retry(lambda: self._gateway.confirm_commits(request))

    def finish(self, request: FinishAttempt) -> OpenEffects:
        """Close the attempt and release its pins."""
        return self._retry(lambda: self._gateway.finish(request))

    def jobs(self) -> tuple[JobRecord, ...]:
        """Return all jobs, most recently active first."""
        return self._retry(self._gateway.jobs)

    def describe(self, job_id: JobId) -> JobView:
        """Return a job with its newest checkpoints."""
        return self._retry(lambda: self._gateway.describe(job_id))

    def checkpoint(self, job_id: JobId, checkpoint_id: int) -> CheckpointRecord | None:
        """Return a checkpoint of a job, or ``None`` if it has no row."""
        return self._retry(lambda: self._gateway.checkpoint(job_id, checkpoint_id))

    def checkpoints(self, job_id: JobId, page: CheckpointPage) -> tuple[CheckpointRecord, ...]:
        """Return a page of the checkpoints of a job, newest first."""
        return self._retry(lambda: self._gateway.checkpoints(job_id, page))

    def latest(self, job_id: JobId, operator_id: OperatorId) -> CheckpointRecord | None:
        """Return the newest completed checkpoint of an operator, or ``None`` if there is none."""
        return self._retry(lambda: self._gateway.latest(job_id, operator_id))

    def latest_checkpoints(self, job_id: JobId, known_version: RowsVersion | None = None) -> LatestCheckpoints | None:
        """Return the newest readable checkpoint of each operator, or ``None`` if the version is the known one."""
        return self._retry(lambda: self._gateway.latest_checkpoints(job_id, known_version))

    def _retry(self, call: Callable[[], Reply]) -> Reply:
        return repeat(call, self._pauses, self._sleep)


def repeat(
    call: Callable[[], Reply], pauses_seconds: tuple[float, ...], sleep: Callable[[float], None] = time.sleep
) -> Reply:
    """
    Call a function, and call it again after a pause while it raises a retryable error.

    :param call: Idempotent function.
    :param pauses_seconds: Pause before each retry, in seconds.
    :param sleep: Function that sleeps for a number of seconds.
    """
    for pause in pauses_seconds:
        try:
            return call()
        except CoordinatorError as error:
            if not error.retryable:
                raise
            log.warning("Retrying the call of the coordinator in %s s: %s", pause, error)
            sleep(pause)
    return call()


Register = Callable[[RegisterAttempt], AttemptGrant]

_PAUSE_SECONDS = 10.0


def registering(register: Register, on_overlap: OnOverlap) -> Register:
    """
    Return a function that registers an attempt according to ``on_overlap``.

    :param register: Function that registers an attempt or raises ``ConcurrentAttemptError``.
    :param on_overlap: Behaviour while another attempt of the operator runs.
    """
    return TakingTurns(register) if on_overlap is OnOverlap.WAIT else register


class TakingTurns:
    """
    Registration that waits for the end of a running attempt of the operator.

    It waits without a limit; the timeout of the task limits it.

    :param register: Function that registers an attempt or raises ``ConcurrentAttemptError``.
    :param pause_seconds: Pause between two tries, in seconds.
    :param sleep: Function that sleeps for a number of seconds.
    """

    def __init__(
        self, register: Register, pause_seconds: float = _PAUSE_SECONDS, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._register = register
        self._pause_seconds = pause_seconds
        self._sleep = sleep

    def __call__(self, request: RegisterAttempt) -> AttemptGrant:
        """Register an attempt as soon as no other attempt of the operator runs."""
        logged = ""
        while True:
            try:
                return self._register(request)
            except ConcurrentAttemptError as busy:
                if busy.holder != logged:
                    log.info("Operator %r of job %r: waiting for %s", request.uid, request.job_name, busy.holder)
                logged = busy.holder
            self._sleep(self._pause_seconds)
