"""
The task's end of a mailbox: carries calls to the coordinator, and answers back.

A relay keeps nothing that another one needs: one that takes over reads the calls without an answer, and a call that is
carried out twice takes effect once. Every process that can write to the storage can write calls. A relay therefore
carries only calls of an attempt, of its own operator, and with the token of its own task.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_statecheck.checkpoint.codec import MalformedMessageError, decode, encode
from airflow_provider_statecheck.checkpoint.fencing import replaced
from airflow_provider_statecheck.checkpoint.messages import AttemptGrant, AttemptRef, RegisterAttempt
from airflow_provider_statecheck.exceptions import (
    AccessDeniedError,
    CheckpointNotFoundError,
    CoordinatorError,
    CorruptStateError,
    InvalidConfigurationError,
    StateCheckError,
)
from airflow_provider_statecheck.gateway.mailbox.box import CallName, Listing, Mailbox
from airflow_provider_statecheck.gateway.mailbox.waiting import WaitingCalls
from airflow_provider_statecheck.gateway.verbs import STAGE_CALLS, StageGateway, Verb, encode_error
from airflow_provider_statecheck.storage.uris import redact

log = logging.getLogger(__name__)

_CALLS = {name: verb for name, verb in STAGE_CALLS.items() if name not in ("adopt", "jobs")}
"""Calls of a driver; its task adopts attempts, and a driver reads its own job only."""
_REGISTER = "register"
_BEGIN = 1
"""Number of the call with which a driver process begins."""
_MOST_AT_ONCE = 256
"""Most calls of one look; a driver waits for the answer of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call as the file has it."""

    verb: str
    message: Any
    read_before: int = 0
    """Number of the oldest call of the instance whose answer it may still read."""


class NotCarriedError(CoordinatorError):
    """A call that this relay leaves to another one, or to a later look."""


class MailboxRelay:
    """
    Carries the calls in one mailbox.

    :param gateway: Gateway of the task; it knows the tokens of the attempts that it registers and adopts.
    :param registration: Registration of the task, with the key of the attempt that opened the mailbox.
    :param attempt: Newest attempt that the gateway may act for.
    :param registered: Called with the grant of each new attempt, of a driver that was started again.
    :param waiting: Tells about the calls that wait; by default the log alone.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        gateway: StageGateway,
        registration: RegisterAttempt,
        attempt: AttemptRef,
        registered: Callable[[AttemptGrant], None] = lambda _: None,
        waiting: WaitingCalls | None = None,
    ) -> None:
        self.mailbox = mailbox
        self._gateway = gateway
        self._registration = registration
        self._newest = attempt
        self._registered = registered
        self._waiting = waiting or WaitingCalls()
        self._answered: set[CallName] = set()
        self._unreadable: dict[CallName, int] = {}
        self._left: set[CallName] = set()
        self._read_before: dict[str, int] = {}
        self._lock = threading.Lock()

    @property
    def registration(self) -> RegisterAttempt:
        """The registration of the task, with the key of the attempt that opened the mailbox."""
        return self._registration

    @property
    def newest(self) -> AttemptRef:
        """The newest attempt of the drivers of this mailbox."""
        return self._newest

    @property
    def has_waiting_driver(self) -> bool:
        """Whether a new driver process waits to begin, which this relay may not let begin."""
        return any(name.number == _BEGIN for name in self._left)

    def look(self) -> int | None:
        """
        Carry out the calls as :meth:`carry`, but log what fails.

        :return: The number of calls that were answered, ``None`` if calls may be left.
        """
        try:
            carried = self.carry()
        except Exception as error:
            # What looks must not end before the driver, whatever an answer of a server or a storage is.
            self._waiting.failed(str(error))
            return None
        self._waiting.carried()
        return carried

    def carry(self) -> int:
        """
        Carry out the calls without an answer, and delete those whose answer was read.

        :return: The number of calls that were answered.
        :raises NotCarriedError: if there are calls, and this relay carries none of them.
        :raises StateCheckError: if the storage or the coordinator fails; the calls stay for the next time.
        """
        with self._lock:
            listing = self.mailbox.listing()
            # Calls that were left to another relay must not keep those behind them from being carried.
            waiting = sorted(self._open(listing), key=lambda name: (name in self._left, _turn(name)))[:_MOST_AT_ONCE]
            carried = self._carried(waiting, listing)
            self._waiting.left(n for n in waiting if n not in carried or isinstance(carried[n], StateCheckError))
            self._left = {name for name, found in carried.items() if isinstance(found, NotCarriedError)}
            self._forget_read(listing)
        outcomes = list(carried.values())
        failures = sorted((each for each in outcomes if isinstance(each, StateCheckError)), key=_is_failure)
        if failures and (_is_failure(failures[-1]) or True not in outcomes):
            raise failures[-1]
        return outcomes.count(True)

    def _carried(self, waiting: Iterable[CallName], listing: Listing) -> dict[CallName, bool | StateCheckError]:
        """Return the outcome of each call; one that fails does not keep the others from being carried."""
        carried: dict[CallName, bool | StateCheckError] = {}
        for name in waiting:
            if name.number == _BEGIN and any(map(_is_failure, carried.values())):
                # A new process makes the calls of the earlier one void, and one of these is still to be carried.
                break
            carried[name] = self._carry(name, listing)
        return carried

    def _open(self, listing: Listing) -> Iterator[CallName]:
        # A listing may be older than the answers of this relay.
        self._answered &= listing.calls.keys()
        self._unreadable = {name: size for name, size in self._unreadable.items() if name in listing.calls}
        instances = {name.instance for name in listing.calls}
        self._read_before = {name: before for name, before in self._read_before.items() if name in instances}
        for name, size in listing.calls.items():
            if name in listing.answers or name in self._answered or self._unreadable.get(name) == size:
                continue
            yield name

    def _carry(self, name: CallName, listing: Listing) -> bool | StateCheckError:
        try:
            self.mailbox.reply(name, self._answer(name.instance, self._read(name)))
        except CheckpointNotFoundError:
            return False  # deleted since, as its answer was read
        except CorruptStateError as error:
            # Another writer than a driver, or one whose storage shows half of a file, which has another size later.
            log.warning("A call in the mailbox could not be read: %s", error)
            self._unreadable[name] = listing.calls[name]
            return False
        except StateCheckError as error:
            return error
        except Exception as error:
            # Such as a text that cannot be sent, in a call that no driver has written.
            return NotCarriedError(f"Call {name.file} could not be carried out: {type(error).__name__}: {error}")
        self._answered.add(name)
        return True

    def _read(self, name: CallName) -> Call:
        try:
            call = decode(Call, self.mailbox.call(name))
        except MalformedMessageError as error:
            raise CorruptStateError(f"Expected a call in {redact(self.mailbox.uri)}, found: {error}.") from error
        before = self._read_before.get(name.instance, 0)
        self._read_before[name.instance] = max(before, min(call.read_before, name.number))
        return call

    def _answer(self, instance: str, call: Call) -> dict[str, Any]:
        try:
            return {"reply": encode(self._carried_out(instance, call))}
        except AccessDeniedError as error:
            # The task of this relay may have been replaced; the one that replaced it may carry the call.
            raise NotCarriedError(str(error)) from error
        except StateCheckError as error:
            # A plain error of the coordinator is one of the way to it, such as an answer of a proxy.
            if error.retryable or type(error) in (CoordinatorError, NotCarriedError):
                raise
            return {"error": encode_error(error)}

    def _carried_out(self, instance: str, call: Call) -> Any:
        verb = _CALLS.get(call.verb)
        if verb is None:
            raise InvalidConfigurationError(f"Expected a call of an attempt, found {call.verb!r:.60}; it is not made.")
        message = _message_of(verb, call.message)
        if verb.name == _REGISTER:
            return self._begin(instance, message)
        self._require_own(verb, message)
        return verb.answer(self._gateway, message)

    def _begin(self, instance: str, asked: RegisterAttempt) -> AttemptGrant:
        """Return the attempt of the mailbox to the first instance, and a new attempt to each other one."""
        key = self._registration.attempt_key
        if self.mailbox.first_instance(instance) != instance:
            key = _key_of(instance, key)
        grant = self._gateway.register(
            replace(self._registration, attempt_key=key, newest_on_storage=asked.newest_on_storage)
        )
        if grant.attempt.epoch > self.mailbox.attempt.epoch:
            self.mailbox.fence(grant.attempt.epoch, is_closed=False)
        if grant.attempt.epoch > self._newest.epoch:
            self._newest = grant.attempt
            self._registered(grant)
        return grant

    def _require_own(self, verb: Verb, message: Any) -> None:
        if verb.is_read:
            self._require_job(message.job_id)
            return
        attempt: AttemptRef = message.attempt
        self._require_job(attempt.job_id, attempt.operator_id)
        if attempt.epoch < self._newest.epoch:
            raise replaced(attempt.epoch, self._newest.epoch, repr(self._registration.uid))
        if attempt.epoch > self._newest.epoch:
            raise NotCarriedError(f"Attempt {attempt.epoch} was registered by another task than this one.")

    def _require_job(self, job_id: str, operator_id: str | None = None) -> None:
        own = self.mailbox.attempt
        if job_id != own.job_id or operator_id not in (None, own.operator_id):
            raise InvalidConfigurationError(
                f"Expected calls of operator {own.operator_id} of job {own.job_id} in its mailbox, found one of "
                f"operator {operator_id} of job {job_id}; it is not made."
            )

    def _forget_read(self, listing: Listing) -> None:
        for name in listing.calls:
            is_answered = name in listing.answers or name in self._answered
            if is_answered and name.number < self._read_before.get(name.instance, 0):
                self.mailbox.forget(name)


def _turn(name: CallName) -> tuple[bool, CallName]:
    # A new instance begins last, as its attempt makes the calls of the earlier one void.
    return name.number == _BEGIN, name


def _is_failure(outcome: bool | StateCheckError) -> bool:
    return isinstance(outcome, StateCheckError) and not isinstance(outcome, NotCarriedError)


def is_mailbox_of(mailbox: Mailbox, opened_by: str, attempt_key: str) -> bool:
    """
    Return whether an attempt is that of a driver of a mailbox.

    :param opened_by: Key of the attempt that opened the mailbox.
    :param attempt_key: Key of the attempt in question.
    """
    # The last call of an instance is never deleted.
    instances = {name.instance for name in mailbox.listing().calls}
    return attempt_key == opened_by or any(attempt_key == _key_of(each, opened_by) for each in instances)


def _key_of(instance: str, opened_by: str) -> str:
    # Made from the name of the instance, so that each relay registers the same attempt for it.
    return hashlib.sha256(f"{opened_by}/{instance}".encode()).hexdigest()[:32]


def _message_of(verb: Verb, data: Any) -> Any:
    try:
        return decode(verb.message, data)
    except MalformedMessageError as error:
        raise InvalidConfigurationError(f"{error} of the call {verb.name!r}; it is not made.") from error
