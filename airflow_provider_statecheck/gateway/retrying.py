"""Repetition of calls that failed or that must wait for a running attempt."""

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
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, JobRecord, OnOverlap
from airflow_provider_statecheck.checkpoint.store import CheckpointPage, JobView
from airflow_provider_statecheck.exceptions import ConcurrentAttemptError, CoordinatorError

log = logging.getLogger(__name__)

Reply = TypeVar("Reply")

DEFAULT_PAUSES_SECONDS = (0.1, 0.5, 2.0, 5.0)


class RetryingGateway:
    """
    A gateway that repeats calls which failed in a retryable way.

    :param gateway: The gateway that does the work.
    :param pauses_seconds: How long to wait before each repetition; their number is the number of repetitions.
    :param sleep: How to wait.
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
        """Fence all earlier attempts of the operator and say what to restore."""
        return self._repeat(lambda: self._gateway.register(request))

    def adopt(self, request: AdoptAttempt) -> None:
        """Let a later try of the same task speak for an attempt that still runs."""
        self._repeat(lambda: self._gateway.adopt(request))

    def confirm_restore(self, request: ConfirmRestore) -> None:
        """Record what was restored."""
        self._repeat(lambda: self._gateway.confirm_restore(request))

    def trigger(self, request: TriggerCheckpoint) -> PendingCheckpoint:
        """Draw the id of a new checkpoint."""
        return self._repeat(lambda: self._gateway.trigger(request))

    def acknowledge(self, request: AcknowledgeCheckpoint) -> AcknowledgeReply:
        """Complete a checkpoint."""
        return self._repeat(lambda: self._gateway.acknowledge(request))

    def decline(self, request: DeclineCheckpoint) -> OpenEffects:
        """Abort a checkpoint."""
        return self._repeat(lambda: self._gateway.decline(request))

    def confirm_discards(self, request: ConfirmDiscards) -> None:
        """Record that bytes are gone."""
        self._repeat(lambda: self._gateway.confirm_discards(request))

    def confirm_commits(self, request: ConfirmCommits) -> OpenEffects:
        """Record that a sink committed what checkpoints hold."""
        return self._repeat(lambda: self._gateway.confirm_commits(request))

    def finish(self, request: FinishAttempt) -> OpenEffects:
        """Close the attempt."""
        return self._repeat(lambda: self._gateway.finish(request))

    def jobs(self) -> tuple[JobRecord, ...]:
        """Return all jobs."""
        return self._repeat(self._gateway.jobs)

    def describe(self, job_id: JobId) -> JobView:
        """Return a job as it stands."""
        return self._repeat(lambda: self._gateway.describe(job_id))

    def checkpoint(self, job_id: JobId, checkpoint_id: int) -> CheckpointRecord | None:
        """Return a checkpoint of a job, ``None`` if it has no row."""
        return self._repeat(lambda: self._gateway.checkpoint(job_id, checkpoint_id))

    def checkpoints(self, job_id: JobId, page: CheckpointPage) -> tuple[CheckpointRecord, ...]:
        """Return a page of the checkpoints of a job, newest first."""
        return self._repeat(lambda: self._gateway.checkpoints(job_id, page))

    def latest(self, job_id: JobId, operator_id: OperatorId) -> CheckpointRecord | None:
        """Return the newest completed checkpoint of an operator."""
        return self._repeat(lambda: self._gateway.latest(job_id, operator_id))

    def _repeat(self, call: Callable[[], Reply]) -> Reply:
        return repeat(call, self._pauses, self._sleep)


def repeat(
    call: Callable[[], Reply], pauses_seconds: tuple[float, ...], sleep: Callable[[float], None] = time.sleep
) -> Reply:
    """
    Make a call, and again after each pause if it fails in a retryable way.

    :param call: What may be repeated.
    :param pauses_seconds: How long to wait before each repetition.
    :param sleep: How to wait.
    """
    for pause in pauses_seconds:
        try:
            return call()
        except CoordinatorError as error:
            if not error.retryable:
                raise
            log.warning("The coordinator's call is repeated in %s s: %s", pause, error)
            sleep(pause)
    return call()


Register = Callable[[RegisterAttempt], AttemptGrant]

_PAUSE_SECONDS = 10.0


def registering(register: Register, on_overlap: OnOverlap) -> Register:
    """
    Return how to register an attempt.

    :param register: Registers it, or refuses.
    :param on_overlap: What to do while another one runs.
    """
    return TakingTurns(register) if on_overlap is OnOverlap.WAIT else register


class TakingTurns:
    """
    Waits for the end of the attempt that has the operator, however long it takes; the caller's own time limit ends that.

    :param register: Registers an attempt, or refuses.
    :param pause_seconds: How long to wait before it is tried again.
    :param sleep: How to wait.
    """

    def __init__(
        self, register: Register, pause_seconds: float = _PAUSE_SECONDS, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._register = register
        self._pause_seconds = pause_seconds
        self._sleep = sleep

    def __call__(self, request: RegisterAttempt) -> AttemptGrant:
        """Register an attempt as soon as no other one has the operator."""
        told = ""
        while True:
            try:
                return self._register(request)
            except ConcurrentAttemptError as busy:
                if busy.holder != told:
                    log.info("Operator %r of job %r: waiting for %s", request.uid, request.job_name, busy.holder)
                told = busy.holder
            self._sleep(self._pause_seconds)
