"""
Trigger that waits as another one does, and relays the calls of a driver in a mailbox meanwhile.

An operator of another provider defers with a trigger of its own, which waits for the end of the job.
:class:`RelayingTrigger` runs that trigger and passes its event on, so the operator completes as its provider wrote it.
Looks into mailboxes are requests of a storage, and never run in the event loop that all triggers share.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeVar, cast

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_statecheck.api.metrics import airflow_metrics
from airflow_provider_statecheck.checkpoint.codec import decode
from airflow_provider_statecheck.checkpoint.masking import masked
from airflow_provider_statecheck.checkpoint.messages import FinishAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.gateway.http import HttpGateway
from airflow_provider_statecheck.gateway.mailbox.box import Mailbox, Pace
from airflow_provider_statecheck.gateway.mailbox.relay import MailboxRelay
from airflow_provider_statecheck.gateway.mailbox.waiting import WaitingCalls
from airflow_provider_statecheck.hooks.connection import CoordinatorAddress, open_storage
from airflow_provider_statecheck.hooks.relayed_stage import RelayAccess
from airflow_provider_statecheck.hooks.submitted_stage import COMPLETION_SECONDS, DriverCheckpoints, is_completing
from airflow_provider_statecheck.hooks.transport import airflow_gateway, mask_in_triggerer
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from airflow_provider_statecheck.gateway.verbs import StageGateway

T = TypeVar("T")

log = logging.getLogger(__name__)

DRIVER_WAITS = {"statecheck": "a driver waits to begin"}
"""Event of a driver that its platform has started again; its attempt begins with the token of the task."""
_LOOKS = ThreadPoolExecutor(max_workers=16, thread_name_prefix="statecheck-mailbox")
"""Threads for all mailboxes of a triggerer, apart from those that other triggers use."""
_LOG_SECONDS = 10.0
_PAUSE_SECONDS = 0.25
"""Between looks for the end of a checkpoint, when the task is ended."""
_OF_TRIGGERER = ("task_instance", "trigger_id", "triggerer_job_id", "timeout_after")
"""What a triggerer sets in a trigger before it runs it."""


class RelayingTrigger(BaseTrigger):
    """
    Runs another trigger, and relays the calls of a driver until that one fires.

    The event is that of the other trigger, or :data:`DRIVER_WAITS`; the task must then defer again.

    :param classpath: Import path of the other trigger.
    :param trigger_kwargs: Its arguments.
    :param access: What the relay needs, a
        :class:`~airflow_provider_statecheck.hooks.relayed_stage.RelayAccess` as JSON values.
    :param storage_conn_id: Connection with the credentials of the storage. By default the filesystem uses those of its
        environment.
    """

    def __init__(
        self,
        *,
        classpath: str,
        trigger_kwargs: Mapping[str, Any],
        access: Mapping[str, Any],
        storage_conn_id: str | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.classpath = classpath
        self.trigger_kwargs = dict(trigger_kwargs)
        self.access = dict(access)
        self.storage_conn_id = storage_conn_id

    @override
    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments, including the token, which Airflow 3.3 stores unencrypted."""
        arguments = ("classpath", "trigger_kwargs", "access", "storage_conn_id")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in arguments}

    @override
    def __repr__(self) -> str:
        classpath, kwargs = self.serialize()
        return str(self.repr(classpath, kwargs | {"access": "***"}))

    @override
    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Relay calls until the other trigger fires, or a new driver process waits to begin."""
        relaying = asyncio.create_task(self._relay())
        events = self._waiting.run()
        firing = asyncio.ensure_future(anext(events, None))
        try:
            await asyncio.wait([relaying, firing], return_when=asyncio.FIRST_COMPLETED)
            if firing.done():
                event = firing.result()
            else:
                relaying.result()  # raises what ended it
                event = TriggerEvent(DRIVER_WAITS)
        finally:
            # While the task is deferred: a trigger that is cancelled after its task was resumed may end the job.
            await _cancelled(relaying, firing)
            await events.aclose()  # type: ignore[attr-defined]
        if event is not None:
            yield event

    @override
    async def cleanup(self) -> None:
        """Let the other trigger clean up."""
        await self._waiting.cleanup()

    async def on_kill(self) -> None:
        """
        Close the attempt as failed, as a user has ended the task, and let the other trigger end the job.

        What the driver has written is carried out before, and a checkpoint that is on its way is waited for, two
        seconds at most.
        """
        with _logging("Calls of the driver may be left: %s"):
            await self._let_complete()
        # First, as the time of both together is bounded, and the driver ends by this as well.
        with _logging("The attempt could not be closed, the next one will replace it: %s"):
            await _in_thread(self._close)
        if hasattr(self._waiting, "on_kill"):  # since Airflow 3.3
            await self._waiting.on_kill()

    @cached_property
    def _waiting(self) -> BaseTrigger:
        waiting: BaseTrigger = resolve_name(self.classpath)(**self.trigger_kwargs)
        for name in _OF_TRIGGERER:
            if hasattr(self, name):
                setattr(waiting, name, getattr(self, name))
        return waiting

    @cached_property
    def _access(self) -> RelayAccess:
        return decode(RelayAccess, self.access)

    async def _relay(self) -> None:
        """Carry calls until a new driver process waits to begin."""
        if self._access.token is not None:
            await mask_in_triggerer(self._access.token)
        relay, checkpoints = await self._opened_at_last()
        self.log.info(
            "The driver calls through the mailbox %s, which this triggerer relays.", redact(relay.mailbox.uri)
        )
        pace, log_at = Pace(), 0.0
        loop = asyncio.get_running_loop()
        while not relay.has_waiting_driver:
            carried = await _in_thread(relay.look)
            if loop.time() >= log_at:
                with _logging("The checkpoints of the driver could not be read: %s"):
                    await _in_thread(checkpoints.log_new)
                log_at = loop.time() + _LOG_SECONDS
            await asyncio.sleep(pace.pause(is_busy=bool(carried)))

    async def _opened_at_last(self) -> tuple[MailboxRelay, DriverCheckpoints]:
        # Airflow may not give the connection while its api-server is away, and the driver runs on meanwhile.
        pace = Pace(shortest=1.0)
        while True:
            try:
                return await _in_thread(self._opened)
            except Exception as error:
                log.warning("The mailbox could not be opened, trying again: %s", masked(str(error)))
            await asyncio.sleep(pace.pause())

    def _opened(self) -> tuple[MailboxRelay, DriverCheckpoints]:
        registration, newest = self._access.registration, self._access.newest
        storage = open_storage(registration.storage_base, self.storage_conn_id)
        gateway = self._gateway()
        waiting = WaitingCalls(partial(airflow_metrics().waits, registration.owner))
        relay = MailboxRelay(Mailbox(storage, self._access.opened), gateway, registration, newest, waiting=waiting)
        return relay, DriverCheckpoints.of(gateway, registration, newest)

    def _gateway(self) -> StageGateway:
        url, token = self._access.url, self._access.token
        if url is None or token is None:
            return airflow_gateway()
        address = CoordinatorAddress(url=url, timeout_seconds=self._access.timeout_seconds)
        # Without repetitions during an outage, as each look repeats what the one before could not carry.
        gateway: Any = HttpGateway.of_attempt(
            address.open(), self._access.newest, self._access.registration.owner, token
        )
        return cast("StageGateway", gateway)

    async def _let_complete(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(COMPLETION_SECONDS):
                relay, _ = await _in_thread(self._opened)
                gateway = self._gateway()
                await _in_thread(relay.look)
                while await _in_thread(partial(is_completing, gateway, relay.newest)):
                    await asyncio.sleep(_PAUSE_SECONDS)
                    await _in_thread(relay.look)

    def _close(self) -> None:
        end = FinishAttempt(
            attempt=self._access.newest,
            status=AttemptStatus.FAILED,
            message="The task was ended by a user while it was deferred.",
            is_of_task=True,
        )
        self._gateway().finish(end)


@contextmanager
def _logging(message: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        log.warning(message, masked(str(error)))


async def _in_thread(function: Callable[[], T]) -> T:
    # With the context, in which the triggerer keeps the log of each trigger.
    call = partial(contextvars.copy_context().run, function)
    return await asyncio.get_running_loop().run_in_executor(_LOOKS, call)


async def _cancelled(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError, Exception):
            await task
