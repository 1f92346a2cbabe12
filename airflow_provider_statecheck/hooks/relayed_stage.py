"""
Task side of a stage whose driver reaches the checkpoint storage and nothing else.

:class:`RelayedStage` opens a mailbox for the driver, and relays its calls in a thread while the task waits. A retry
first carries out what the driver of the earlier try has left in its mailbox, and only then registers.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.checkpoint.messages import AttemptRef, RegisterAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptRecord, AttemptStatus, OnOverlap, Transport
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CorruptStateError,
    StaleAttemptError,
    StateCheckError,
    StorageError,
)
from airflow_provider_statecheck.gateway.mailbox.box import Mailbox, Pace, Sleep
from airflow_provider_statecheck.gateway.mailbox.relay import MailboxRelay, NotCarriedError, is_mailbox_of
from airflow_provider_statecheck.gateway.mailbox.waiting import WaitingCalls
from airflow_provider_statecheck.hooks.connection import DEFAULT_TIMEOUT_SECONDS
from airflow_provider_statecheck.hooks.submitted_stage import SubmittedStage, is_completing
from airflow_provider_statecheck.hooks.transport import is_orm_open
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.driver.mailbox import MailboxContent
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.records import AttemptOwner
    from airflow_provider_statecheck.gateway.verbs import StageGateway
    from airflow_provider_statecheck.hooks.submitted_stage import DriverAccess
    from airflow_provider_statecheck.spark.driver.settings import DriverSettings
    from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

log = logging.getLogger(__name__)

_LOOKS_FOR_A_DRIVER = 16
"""A minute, with the pauses between them."""
_LOOKS_FOR_A_CHECKPOINT = 20
"""Ten seconds: a driver that has waited for long looks for its answers every five."""
_CHECKPOINT_PAUSE_SECONDS = 0.5
_LONGEST_LOOK_SECONDS = 3.0
"""Of the five that Airflow leaves to a task that it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayAccess:
    """What a process needs to relay the calls of a driver."""

    registration: RegisterAttempt
    """Registration of the attempt that opened the mailbox."""
    opened: AttemptRef
    """Attempt that opened the mailbox."""
    newest: AttemptRef
    """Newest attempt of the drivers of the mailbox."""
    url: str | None = None
    """Root URL of the coordinator's server, ``None`` to use Airflow's database."""
    token: str | None = field(default=None, repr=False)
    """Token of the newest attempt, which can begin no other one."""
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """Timeout of a request to the server."""


class RelayedStage(SubmittedStage):
    """
    Attempt of a driver that may call through a mailbox.

    :param storage: Storage of the mailbox.
    :param patience_seconds: Longest time that the driver waits for an answer.
    :param looking: Returns what looks into a mailbox until it is stopped; a thread by default.
    :param sleep: Waits for a number of seconds.
    """

    def __init__(
        self,
        access: DriverAccess,
        registration: RegisterAttempt,
        driver: DriverSettings,
        on_overlap: OnOverlap = OnOverlap.FAIL,
        *,
        storage: CheckpointStorage,
        patience_seconds: float,
        looking: Callable[[MailboxRelay], Looking] | None = None,
        sleep: Sleep = time.sleep,
    ) -> None:
        super().__init__(access, registration, driver, on_overlap)
        self._storage = storage
        self._patience_seconds = patience_seconds
        self._looking = looking or RelayThread
        self._relay: MailboxRelay | None = None
        self._relaying: Looking | None = None
        self._sleep = sleep
        self._opened: Mapping[str, Any] | None = None
        """Epoch and key of the attempt that opened the mailbox, of a task that was deferred."""

    def open_mailbox(self) -> str:
        """
        Register an attempt, which fences all earlier attempts, and open its mailbox.

        :return: URI of the mailbox, which is no secret.
        :raises StorageError: if the storage fails.
        """
        if self._relay is not None:
            # The task was resumed after it had deferred without a driver, for instance until there is a cluster.
            return self._relay.mailbox.uri
        self._drain()
        attempt = self._begin(Transport.MAILBOX)
        for earlier in self._mailboxes_up_to(attempt):
            earlier.fence(attempt.epoch, is_closed=True)
        mailbox = Mailbox(self._storage, attempt)
        MailboxContent(
            registration=self.registration, driver=self._driver, patience_seconds=self._patience_seconds
        ).open(mailbox)
        self._start(self._relay_in(mailbox, self.registration.attempt_key, attempt))
        return mailbox.uri

    @property
    def submission(self) -> str:
        """Name of the submission of the driver of this attempt, of 32 letters and digits; no other attempt has it."""
        if self._relay is None:
            raise StaleAttemptError("Expected a registered attempt, found none; open the mailbox first.")
        return hashlib.sha256(self._relay.registration.attempt_key.encode()).hexdigest()[:32]

    @property
    def mailbox_uri(self) -> str | None:
        """URI of the mailbox; ``None`` without one."""
        return None if self._relay is None else self._relay.mailbox.uri

    def relay_access(self) -> RelayAccess | None:
        """Return what another process needs to relay the calls of the driver, ``None`` without a mailbox."""
        if self._relay is None:
            return None
        newest = self._relay.newest
        is_local = is_orm_open()
        return RelayAccess(
            registration=self._relay.registration,
            opened=self._relay.mailbox.attempt,
            newest=newest,
            url=None if is_local else self._access.url,
            token=None if is_local else self._access.gateway.token_of(newest),
            timeout_seconds=self._access.timeout_seconds,
        )

    @override
    def close(self, status: AttemptStatus, message: str = "", gateway: StageGateway | None = None) -> bool:
        is_closed = super().close(status, message, gateway)
        # The driver of an attempt that is not closed may live, and the next try reconnect to it.
        if is_closed and self._attempt is not None and self._relaying is not None and self._relaying.has_carried_all:
            self._remove_mailboxes(self._attempt)
        return is_closed

    @contextmanager
    def relaying(self) -> Iterator[None]:
        """Relay the calls of the driver while the block runs, and those that are left when it ends."""
        try:
            yield
        finally:
            if self._relaying is not None:
                self._relaying.stop()

    def let_begin(self) -> None:
        """Carry the calls until no new driver process waits to begin, for a minute at most."""
        pace = Pace(shortest=1.0)
        for _ in range(_LOOKS_FOR_A_DRIVER):
            if self._relay is None or (self._relay.look() is not None and not self._relay.has_waiting_driver):
                return
            self._sleep(pace.pause())

    @override
    def resume(self, mailbox: Mapping[str, Any] | None = None) -> None:
        self._opened = mailbox
        super().resume()

    @override
    def _continue(self, running: AttemptRecord) -> None:
        super()._continue(running)
        try:
            relay = self._relay_of(running)
        except StorageError as error:
            # A driver with a token needs no mailbox, and its task no access to the storage.
            log.warning("A mailbox of the driver, if it has one, waits for the next try: %s", error)
            return
        if relay is not None:
            self._start(relay)

    def _start(self, relay: MailboxRelay) -> None:
        log.info("The driver calls through the mailbox %s, which this task relays.", redact(relay.mailbox.uri))
        self._relay, self._relaying = relay, self._looking(relay)
        self._relaying.start()

    def _drain(self) -> None:
        """Carry out what the driver of an earlier try has written, so that nothing of it is lost."""
        running = self._adopted(self._as_earlier_try)
        relay = None if running is None else self._relay_of(running)
        if relay is None:
            return
        carried = 0
        try:
            for found in self._carrying(relay):
                carried += found
        except NotCarriedError as error:
            # It is of no driver of this task, and waiting would not change that.
            log.warning("A call in the mailbox of the earlier try was not carried out: %s", error)
        log.info("Carried out %s of the driver of the earlier try.", counted(carried, "call"))

    def _carrying(self, relay: MailboxRelay) -> Iterator[int]:
        """Carry the calls that are there, and those with which a living driver completes a checkpoint on its way."""
        for _ in range(_LOOKS_FOR_A_CHECKPOINT):
            while found := relay.carry():
                yield found
            if not is_completing(self._gateway, relay.newest):
                return
            self._sleep(_CHECKPOINT_PAUSE_SECONDS)

    def _as_earlier_try(self, earlier: AttemptOwner) -> AttemptOwner:
        # The registration that follows decides by this attempt whether the task was retried, cleared or created again.
        own = self.registration.owner
        return replace(earlier, logical_task=own.logical_task, run_id=own.run_id, airflow=own.airflow)

    def _relay_of(self, running: AttemptRecord) -> MailboxRelay | None:
        if self._opened is not None:
            attempt = replace(AttemptRef.of(running), epoch=self._opened["epoch"])
            return self._relay_in(Mailbox(self._storage, attempt), self._opened["opened_by"], AttemptRef.of(running))
        for mailbox in reversed(self._mailboxes_up_to(AttemptRef.of(running))):
            try:
                opened_by = MailboxContent.of(mailbox).registration.attempt_key
            except CheckpointNotFoundError:
                continue
            except CorruptStateError as error:
                log.warning("A mailbox of an earlier try is left as it is: %s", error)
                continue
            if is_mailbox_of(mailbox, opened_by, running.attempt_key):
                return self._relay_in(mailbox, opened_by, AttemptRef.of(running))
        return None

    def _relay_in(self, mailbox: Mailbox, opened_by: str, attempt: AttemptRef) -> MailboxRelay:
        from airflow_provider_statecheck.api.metrics import task_metrics

        owner = replace(self.registration.owner, transport=Transport.MAILBOX)
        registration = replace(self.registration, attempt_key=opened_by, owner=owner)
        waiting = WaitingCalls(partial(task_metrics().waits, owner))
        return MailboxRelay(mailbox, self._gateway, registration, attempt, self._follow, waiting)

    def _mailboxes_up_to(self, attempt: AttemptRef) -> list[Mailbox]:
        return [each for each in Mailbox.all_of(self._storage, attempt) if each.attempt.epoch <= attempt.epoch]

    def _remove_mailboxes(self, attempt: AttemptRef) -> None:
        try:
            for mailbox in self._mailboxes_up_to(attempt):
                mailbox.remove()
        except StateCheckError as error:
            log.warning("A mailbox could not be removed; the next garbage collection deletes it: %s", error)


class Looking(Protocol):
    """Looks into a mailbox until it is stopped."""

    has_carried_all: bool
    """Whether the last look, after the end of the driver, has carried all calls."""

    def start(self) -> None:
        """Begin to look."""

    def stop(self) -> None:
        """Carry out what is left, and end."""


class RelayThread:
    """Looks into a mailbox until it is stopped: often while there are calls, and seldom while there are none."""

    def __init__(self, relay: MailboxRelay) -> None:
        self.has_carried_all = False
        """Whether the last look, after the end of the driver, has carried all calls."""
        self._relay = relay
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="statecheck-mailbox")

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Carry out what is left, and end."""
        self._stopped.set()
        # A look of the thread after the last one could begin an attempt that stays open.
        self._thread.join(_LONGEST_LOOK_SECONDS)
        self.has_carried_all = self._relay.look() is not None

    def _run(self) -> None:
        pace = Pace()
        while not self._stopped.wait(pace.pause(is_busy=bool(self._relay.look()))):
            pass
