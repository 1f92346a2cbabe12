"""The driver's end of a mailbox: each call of a stage is a file, and its answer another one."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from airflow_provider_statecheck.checkpoint.codec import encode, reading_reply
from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.messages import AttemptGrant, RegisterAttempt
from airflow_provider_statecheck.exceptions import (
    CommitStateUnknownError,
    CoordinatorError,
    StaleAttemptError,
    StorageError,
)
from airflow_provider_statecheck.gateway.mailbox.box import CallName, Fence, Mailbox, Pace, Sleep
from airflow_provider_statecheck.gateway.verbs import STAGE_CALLS, Verb, decode_error
from airflow_provider_statecheck.storage.uris import redact

log = logging.getLogger(__name__)

Found = TypeVar("Found")

_LONG_WAIT_SECONDS = 60.0
"""Time after which the log says that a call waits."""


class MailboxGateway:
    """
    A ``StageGateway`` through a mailbox, made from the same table of calls as that over HTTP.

    A process that a platform starts again opens another gateway, which is another instance; its registration gets an
    attempt of its own, and the calls of the earlier instance have no effect any more.

    :param patience_seconds: Longest time to wait for an answer.
    :param sleep: Function that sleeps for a number of seconds.
    :param monotonic: Clock in seconds.
    :param started_ns: Time at which the process began, in nanoseconds since 1970; by default now.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        patience_seconds: float,
        *,
        sleep: Sleep = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
        started_ns: int | None = None,
    ) -> None:
        started_ns = time.time_ns() if started_ns is None else started_ns
        self._box = mailbox
        self._patience_seconds = patience_seconds
        self._sleep = sleep
        self._monotonic = monotonic
        # A relay that finds two processes that begin takes them in the order of their starts.
        self.instance = f"{started_ns:016x}"[-16:] + new_key()[:16]
        # A handler of a signal may call while its thread is in a call, and so may other threads.
        self._numbers = itertools.count(1)
        self._read: set[int] = set()
        self._epoch: int | None = None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or name not in STAGE_CALLS:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return partial(self._call, STAGE_CALLS[name])

    def register(self, request: RegisterAttempt) -> AttemptGrant:
        """Begin: get the attempt of the mailbox, or a new one if another process has that."""
        grant: AttemptGrant = self._call(STAGE_CALLS["register"], request)
        self._epoch = grant.attempt.epoch
        return grant

    def require_open(self) -> None:
        """
        Require that no newer attempt has been registered, as far as the files tell; the rows decide in any case.

        :raises StaleAttemptError: if a newer attempt has been registered, or the task has ended.
        :raises StorageError: if the storage fails.
        """
        fence = self._box.fenced()
        if fence is not None and self._is_shut_out(fence):
            raise StaleAttemptError(
                f"Attempt {self._own_epoch} of the mailbox {redact(self._box.uri)} was replaced by attempt "
                f"{fence.epoch}; stop it, because its calls have no effect any more.",
                epoch=self._own_epoch,
                current_epoch=fence.epoch,
            )
        if not self._box.is_open:
            raise StaleAttemptError(
                f"Expected the mailbox {redact(self._box.uri)}, found that it was removed, as the task of this driver "
                "has ended; stop it, because its calls have no effect any more.",
                epoch=self._own_epoch,
            )

    @property
    def _own_epoch(self) -> int:
        return self._box.attempt.epoch if self._epoch is None else self._epoch

    def _is_shut_out(self, fence: Fence) -> bool:
        # An instance without an attempt is about to get one that is newer than all of this mailbox.
        return fence.is_closed or (self._epoch is not None and self._epoch < fence.epoch)

    def _call(self, verb: Verb, *arguments: Any, **named: Any) -> Any:
        message = verb.message_of(*arguments, **named)
        name = CallName(next(self._numbers), self.instance)
        try:
            answer = self._sent(verb, name, message)
        finally:
            self._read.add(name.number)
        return _reply_of(verb, answer)

    def _sent(self, verb: Verb, name: CallName, message: Any) -> Any:
        # What was read before the oldest call that waits may be deleted. A number counts from when it was drawn.
        read_before = next(number for number in itertools.count(1) if number not in self._read)
        call = {"verb": verb.name, "message": encode(message), "read_before": read_before}
        deadline = self._monotonic() + self._patience_seconds
        self._until(deadline, partial(self._is_posted, name, call), verb)
        return self._until(deadline, partial(self._box.answer, name), verb)

    def _is_posted(self, name: CallName, call: Any) -> bool:
        # A call of a driver that has slept until its mailbox was removed would stay there.
        self.require_open()
        self._box.post(name, call)
        return True

    def _until(self, deadline: float, look: Callable[[], Found | None], verb: Verb) -> Found:
        pace, tell_at = Pace(), self._monotonic() + _LONG_WAIT_SECONDS
        while True:
            failure = ""
            try:
                if (found := look()) is not None:
                    return found
                self.require_open()
            except StorageError as error:
                failure = str(error)
            if self._monotonic() >= deadline:
                raise self._unanswered(verb, failure)
            if self._monotonic() >= tell_at:
                tell_at = math.inf
                self._tell_wait(verb, failure)
            self._sleep(pace.pause())

    def _tell_wait(self, verb: Verb, failure: str) -> None:
        log.warning(
            "The call %r has waited for %.0f s in the mailbox %s%s; its task, or the next try of it, answers. The call "
            "fails after %.0f s.",
            verb.name,
            _LONG_WAIT_SECONDS,
            redact(self._box.uri),
            f" ({failure})" if failure else "",
            self._patience_seconds,
        )

    def _unanswered(self, verb: Verb, failure: str) -> CommitStateUnknownError:
        found = failure or "found none"
        return CommitStateUnknownError(
            f"Expected an answer to the call {verb.name!r} in the mailbox {redact(self._box.uri)} within "
            f"{self._patience_seconds:.0f} s, {found}; check that the Airflow task runs and reaches the storage and "
            "the api-server, or raise mailbox_patience. The call stays there, and a retry of the task carries it out."
        )


def _reply_of(verb: Verb, answer: Any) -> Any:
    with reading_reply():
        if not isinstance(answer, dict) or answer.keys().isdisjoint({"reply", "error"}):
            raise ValueError("no reply and no error")
    if "error" in answer:
        raise _error_of(answer["error"])
    return verb.decoded(answer["reply"])


def _error_of(data: Any) -> Exception:
    if isinstance(data, dict) and {"code", "message"} <= data.keys():
        return decode_error(data)
    return CoordinatorError(f"Expected an error of the coordinator, found {type(data).__name__}.")
