"""
Retries of calls: after transient failures, and of registrations while another attempt runs.

Functions import tenacity, so that a driver without it reaches the check that names a missing package.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from airflow_provider_statecheck.checkpoint.messages import AttemptGrant, RegisterAttempt
from airflow_provider_statecheck.checkpoint.records import OnOverlap
from airflow_provider_statecheck.exceptions import ConcurrentAttemptError, CoordinatorError

if TYPE_CHECKING:
    from tenacity import RetryCallState

log = logging.getLogger(__name__)

Gateway = TypeVar("Gateway")
Reply = TypeVar("Reply")

DEFAULT_PAUSES_SECONDS = (0.1, 0.5, 2.0, 5.0)
OUTAGE_PAUSES_SECONDS = (0.1, 0.5, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0)
"""Long enough for a restart of the api-server; Airflow fails a task without it soon after."""


def retrying(
    gateway: Gateway,
    pauses_seconds: tuple[float, ...] = DEFAULT_PAUSES_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> Gateway:
    """
    Return a gateway whose calls are repeated after retryable errors, see :func:`repeat`.

    :param gateway: Gateway of any interface; all its calls are idempotent.
    """
    return cast(Gateway, _Retried(gateway, partial(repeat, pauses_seconds=pauses_seconds, sleep=sleep)))


class _Retried:
    def __init__(self, target: Any, repeated: Callable[[Callable[[], Any]], Any]) -> None:
        self._target = target
        self._repeated = repeated

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._target, name)
        return lambda *arguments, **named: self._repeated(partial(call, *arguments, **named))


def repeat(
    call: Callable[[], Reply],
    pauses_seconds: tuple[float, ...] = DEFAULT_PAUSES_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> Reply:
    """
    Call a function, and call it again after a pause while it raises a retryable error.

    :param call: Idempotent function.
    :param pauses_seconds: Pause before each retry, in seconds; their number is the number of retries.
    :param sleep: Function that sleeps for a number of seconds.
    """
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_chain, wait_fixed, wait_none

    # One object for all calls would share its state with a call that a signal handler makes in between.
    retries = Retrying(
        retry=retry_if_exception(_is_retryable),
        wait=wait_chain(*map(wait_fixed, pauses_seconds), wait_none()),
        stop=stop_after_attempt(len(pauses_seconds) + 1),
        sleep=sleep,
        before_sleep=_warn,
        reraise=True,
    )
    return retries(call)


def _is_retryable(error: BaseException) -> bool:
    return isinstance(error, CoordinatorError) and error.retryable


def _warn(state: RetryCallState) -> None:
    log.warning("Retrying the call of the coordinator in %s s: %s", state.upcoming_sleep, _error_of(state))


def _error_of(state: RetryCallState) -> BaseException | None:
    return None if state.outcome is None else state.outcome.exception()


Register = Callable[[RegisterAttempt], AttemptGrant]

_PAUSE_SECONDS = 10.0


def registering(register: Register, on_overlap: OnOverlap) -> Register:
    """
    Return a function that registers an attempt according to ``on_overlap``.

    :param register: Function that registers an attempt or raises ``ConcurrentAttemptError``.
    :param on_overlap: Behaviour while another attempt of the operator runs.
    """
    return taking_turns(register) if on_overlap is OnOverlap.WAIT else register


def taking_turns(
    register: Register, pause_seconds: float = _PAUSE_SECONDS, sleep: Callable[[float], None] = time.sleep
) -> Register:
    """
    Return a registration that waits for the end of a running attempt of the operator.

    It waits without a limit; the timeout of the task limits it.

    :param register: Function that registers an attempt or raises ``ConcurrentAttemptError``.
    :param pause_seconds: Pause between two tries, in seconds.
    :param sleep: Function that sleeps for a number of seconds.
    """
    from tenacity import Retrying, retry_if_exception_type, wait_fixed

    def registered(request: RegisterAttempt) -> AttemptGrant:
        waits = Retrying(
            retry=retry_if_exception_type(ConcurrentAttemptError),
            wait=wait_fixed(pause_seconds),
            sleep=sleep,
            before_sleep=_NewHolder(request),
        )
        return waits(register, request)

    return registered


class _NewHolder:
    """Logs for which attempt a registration waits, once for each."""

    def __init__(self, request: RegisterAttempt) -> None:
        self._request = request
        self._logged = ""

    def __call__(self, state: RetryCallState) -> None:
        busy = _error_of(state)
        if isinstance(busy, ConcurrentAttemptError) and busy.holder != self._logged:
            self._logged = busy.holder
            log.info("Operator %r of job %r: waiting for %s", self._request.uid, self._request.job_name, busy.holder)
