"""Runs of one job that take turns: a registration that is refused for a running attempt is repeated until that has ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from airflow_provider_statecheck.checkpoint.messages import AttemptGrant, RegisterAttempt
from airflow_provider_statecheck.checkpoint.records import OnOverlap
from airflow_provider_statecheck.exceptions import ConcurrentAttemptError

log = logging.getLogger(__name__)

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
