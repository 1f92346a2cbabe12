"""
Deadlines of calls to storage for servers and maintenance, which serve many jobs.

A storage may never answer, and clients repeat calls for minutes. A call that takes too long is given up. If its host
does not answer a short call either, it is not asked again for some time, so that it delays one call instead of every
call of every job; if it does, only that call fails, because a very large directory of one job must not stop the others.
The thread of a call remains until the client gives up; it does not keep the process from ending. All calls that are
given up are idempotent.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TypeVar

from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.overriding import override

Result = TypeVar("Result")

CALL_SECONDS = 20.0
"""Deadline of a call that transfers little."""
DIRECTORY_SECONDS = 300.0
"""Deadline of a call that lists or deletes a directory."""
PROBE_SECONDS = 10.0
"""Deadline of the short call that tells whether a host answers at all."""
_BYTES_PER_SECOND = 1 << 20
_SILENT_SECONDS = 300.0
"""Time for which a host that did not answer is not asked again."""
_ANSWERED_SECONDS = 60.0
"""Time after an answer in which a host is not tested."""
_IDLE_SECONDS = 10.0
"""Time for which a thread waits for the next call. The start of a thread takes as long as a call to a fast storage."""


def seconds_for(size: int) -> float:
    """Return the deadline of a call that transfers a number of bytes."""
    return CALL_SECONDS + size / _BYTES_PER_SECOND


@dataclass(slots=True)
class HostPatience:
    """
    Gives up calls to hosts that do not answer.

    :param monotonic: Clock in seconds.
    :param longest_seconds: Upper limit of all deadlines.
    :param is_of_user: Whether a user waits for the calls, and none of other jobs do. A call that may take long is then
        given up only if its host does not answer a short call either.
    """

    monotonic: Callable[[], float] = time.monotonic
    longest_seconds: float = float("inf")
    is_of_user: bool = False
    _silent_until: dict[str, float] = field(default_factory=dict)
    _answered_at: dict[str, float] = field(default_factory=dict)

    def call(
        self,
        host: str,
        action: Callable[[], Result],
        seconds: float = CALL_SECONDS,
        *,
        probe: Callable[[], object] | None = None,
        has_begun: Callable[[], bool] = lambda: True,
    ) -> Result:
        """
        Return the result of a call, or raise its error.

        :param host: Name of the host for the error, without credentials.
        :param has_begun: Whether the call has come to the part that may take long; what precedes that has the deadline
            of a short call.
        :param probe: Short call to the same host that does not depend on the job, for which an error is an answer, too.
            By default a host whose call takes too long is not asked again for some time.
        :raises StorageError: if it does not answer in time, or did not recently.
        """
        self._require_not_silent(host)
        goes_on = self.is_of_user and seconds > CALL_SECONDS
        seconds = min(seconds, self.longest_seconds)
        short = min(seconds, CALL_SECONDS)
        answer = _started(action)
        try:
            if not _has_ended(answer, short):
                rest, goes_on = (seconds - short, goes_on) if has_begun() else (0.0, False)
                while not _has_ended(answer, rest):
                    if error := self._silence(host, seconds if has_begun() else short, probe, goes_on=goes_on):
                        raise error
                    rest = seconds
            return answer.result()
        finally:
            if answer.done():
                self._answered_at[host] = self.monotonic()

    def _silence(
        self, host: str, seconds: float, probe: Callable[[], object] | None, *, goes_on: bool
    ) -> StorageError | None:
        """Return the error of a call that took too long, or ``None`` if it goes on because its host answers."""
        if probe is not None and self._answers(host, probe):
            return (
                None
                if goes_on
                else StorageError(
                    f"Expected an answer of {host} within {seconds:g} seconds, found that it answers other calls "
                    "only; a directory may be too large, or a link may lead elsewhere. Check the storage and the "
                    "network."
                )
            )
        self._silent_until[host] = self.monotonic() + _SILENT_SECONDS
        return StorageError(
            f"Expected an answer of {host} within {seconds:g} seconds, found none; it is asked again in "
            f"{_SILENT_SECONDS:g} seconds. Check the storage and the network."
        )

    def _answers(self, host: str, probe: Callable[[], object]) -> bool:
        try:
            _started(lambda: _ignoring_errors(probe)).result(min(PROBE_SECONDS, self.longest_seconds))
        except TimeoutError:
            return False
        self._answered_at[host] = self.monotonic()
        return True

    def require_answer(self, host: str, test: Callable[[], object]) -> None:
        """
        Require that a host has answered recently, or answers a short call now, even with an error.

        :raises StorageError: if it does not answer in time, or did not recently.
        """
        self._require_not_silent(host)
        answered_at = self._answered_at.get(host)
        if answered_at is None or self.monotonic() - answered_at > _ANSWERED_SECONDS:
            self.call(host, lambda: _ignoring_errors(test))

    def _require_not_silent(self, host: str) -> None:
        left = self._silent_until.get(host, 0.0) - self.monotonic()
        if left > 0:
            raise StorageError(
                f"Expected an answer of {host}, found that it did not answer; it is asked again in {left:.0f} seconds. "
                "Check the storage and the network."
            )


def _started(action: Callable[[], Result]) -> Future[Result]:
    answer: Future[Result] = Future()
    run = copy_context().run
    try:
        caller = _IDLE.pop()
    except IndexError:
        caller = _Caller()
        caller.start()
    caller.calls.put(lambda: run(_answer, action, answer))
    return answer


class _Caller(threading.Thread):
    """
    Makes calls, one after the other.

    A call never waits for another one: only a thread without a call is in ``_IDLE``. Those that wait for a host that
    never answers remain, and do not keep the process from ending, unlike those of a pool.
    """

    def __init__(self) -> None:
        super().__init__(name="statecheck-call", daemon=True)
        self.calls: SimpleQueue[Callable[[], None]] = SimpleQueue()

    @override
    def run(self) -> None:
        while True:
            try:
                call = self.calls.get(timeout=_IDLE_SECONDS)
            except Empty:
                with suppress(ValueError):
                    _IDLE.remove(self)
                    return
                continue  # it was just taken for a call
            call()
            # The result of the call would live until the next one.
            del call
            _IDLE.append(self)


_IDLE: list[_Caller] = []
os.register_at_fork(after_in_child=_IDLE.clear)


def _has_ended(answer: Future[Result], seconds: float) -> bool:
    # Less work than ``concurrent.futures.wait``, which is for several.
    with suppress(TimeoutError):
        answer.exception(seconds)
    return answer.done()


def _answer(action: Callable[[], Result], answer: Future[Result]) -> None:
    try:
        answer.set_result(action())
    except BaseException as error:
        answer.set_exception(error)


def _ignoring_errors(test: Callable[[], object]) -> None:
    # Any answer shows that the host can be reached.
    with suppress(Exception):
        test()


PATIENCE = HostPatience()
"""That of this process."""
