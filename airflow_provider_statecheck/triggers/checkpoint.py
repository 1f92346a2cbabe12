"""Waiting for a checkpoint in the triggerer, where no worker is held."""

from __future__ import annotations

from asyncio import sleep
from collections.abc import AsyncIterator
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent
from typing_extensions import override

from airflow_provider_statecheck.checkpoint.awaited import AwaitedCheckpoint
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CoordinatorError,
    EnvironmentNotReadyError,
    StateCheckError,
    TokenExpiredError,
)
from airflow_provider_statecheck.hooks.address import DEFAULT_TIMEOUT_SECONDS
from airflow_provider_statecheck.hooks.reading import RENEWAL_SECONDS, ReadingAccess, job_reader

if TYPE_CHECKING:
    from airflow_provider_statecheck.hooks.reading import JobReader

_ARGUMENTS = (
    "job",
    "uid",
    "at_least",
    "max_age_seconds",
    "poke_interval",
    "url",
    "token",
    "request_timeout_seconds",
    "deadline",
)


class CheckpointTrigger(BaseTrigger):
    """
    Fire when a job has the checkpoint that is waited for, or when nobody may look any more.

    The event is ``{"status": "success", "checkpoint": {...}}``, ``{"status": "error", "message": ...}``, or ``{"status":
    "expired", "deadline": ...}`` after an outage during which the token could not be renewed; the task then gets another
    one and waits on. Without a URL and a token the coordinator is asked in this process, which works where Airflow's
    database is open.

    :param job: The name under which the job is kept.
    :param uid: The operator within the job; by default any.
    :param at_least: The lowest checkpoint id that will do.
    :param max_age_seconds: How long ago the checkpoint may have been completed.
    :param poke_interval: Seconds between two looks.
    :param url: Root of the api-server.
    :param token: A token that can read the job.
    :param request_timeout_seconds: How long to wait for an answer.
    :param deadline: When the task's time is over, as a POSIX time; it is only handed back to the task.
    """

    _renewed_at: float
    """When the token was renewed, by the clock of this process."""

    def __init__(
        self,
        *,
        job: str,
        uid: str | None = None,
        at_least: int | None = None,
        max_age_seconds: float | None = None,
        poke_interval: float = 60.0,
        url: str | None = None,
        token: str | None = None,
        request_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        deadline: float | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.job = job
        self.uid = uid
        self.at_least = at_least
        self.max_age_seconds = max_age_seconds
        self.poke_interval = poke_interval
        self.url = url
        self.token = token
        self.request_timeout_seconds = request_timeout_seconds
        self._warning: str | None = None
        self.deadline = deadline

    @override
    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what makes this trigger again; it holds the token, which Airflow keeps in its database and shows to nobody."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in _ARGUMENTS}

    @override
    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until the checkpoint is there; Airflow itself ends this when the task's time is over."""
        yield TriggerEvent(await self._outcome())

    @override
    def __repr__(self) -> str:
        classpath, kwargs = self.serialize()
        return str(self.repr(classpath, kwargs | {"token": self.token and "***"}))

    async def _outcome(self) -> dict[str, Any]:
        try:
            async with job_reader(self._access()) as reader:
                return {"status": "success", "checkpoint": await self._wait(reader)}
        except TokenExpiredError as error:
            self.log.warning("The task has to ask for another token: %s", error)
            return {"status": "expired", "deadline": self.deadline}
        except StateCheckError as error:
            return {"status": "error", "message": f"Cannot wait for a checkpoint of job {self.job!r}: {error}"}

    async def _wait(self, reader: JobReader) -> dict[str, Any]:
        awaited, self._renewed_at = self._awaited(), monotonic()
        self.log.info("Waiting for %s.", awaited)
        while True:
            found = await self._look(reader, awaited)
            if found is not None:
                return found
            await self._pause(reader)

    async def _look(self, reader: JobReader, awaited: AwaitedCheckpoint) -> dict[str, Any] | None:
        try:
            view = await reader.describe(awaited.job_id)
        except CheckpointNotFoundError:
            return None  # a job is there from its first attempt on
        except (CoordinatorError, EnvironmentNotReadyError) as error:
            if not _passes(error):
                raise
            self.log.warning("The coordinator is asked again in %s s: %s", self.poke_interval, error)
            return None
        self._warn_of(awaited.unknown_operator(view))
        return awaited.find(view)

    def _warn_of(self, unknown: str | None) -> None:
        if unknown is not None and unknown != self._warning:
            self.log.warning("%s", unknown)
        self._warning = unknown

    async def _pause(self, reader: JobReader) -> None:
        # The token ends during a pause that is longer than its life.
        left = self.poke_interval
        while True:
            await sleep(min(left, RENEWAL_SECONDS))
            left -= RENEWAL_SECONDS
            if monotonic() - self._renewed_at >= RENEWAL_SECONDS:
                await self._renew(reader)
            if left <= 0:
                return

    async def _renew(self, reader: JobReader) -> None:
        try:
            await reader.renew()
            self._renewed_at = monotonic()
        except (CoordinatorError, EnvironmentNotReadyError) as error:
            if not _passes(error):
                raise
            self.log.warning("The token for reading is renewed later: %s", error)

    def _awaited(self) -> AwaitedCheckpoint:
        max_age = None if self.max_age_seconds is None else timedelta(seconds=self.max_age_seconds)
        return AwaitedCheckpoint(job=self.job, uid=self.uid, at_least=self.at_least, max_age=max_age)

    def _access(self) -> ReadingAccess | None:
        if self.url is None or self.token is None:
            return None
        return ReadingAccess(url=self.url, token=self.token, timeout_seconds=self.request_timeout_seconds)


def _passes(error: StateCheckError) -> bool:
    # An api-server that is upgraded answers that its tables are not ready until they are migrated.
    return error.retryable or isinstance(error, EnvironmentNotReadyError)
