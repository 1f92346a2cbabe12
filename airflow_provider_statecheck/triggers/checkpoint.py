"""Trigger that waits for a checkpoint, and the condition it waits for."""

from __future__ import annotations

from asyncio import sleep
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent
from typing_extensions import override

from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import require
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CoordinatorError,
    EnvironmentNotReadyError,
    StateCheckError,
    TokenExpiredError,
)
from airflow_provider_statecheck.hooks.connection import DEFAULT_TIMEOUT_SECONDS
from airflow_provider_statecheck.hooks.transport import RENEWAL_SECONDS, ReadingAccess, job_reader

if TYPE_CHECKING:
    from airflow_provider_statecheck.hooks.transport import JobReader


_MOST_UIDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCondition:
    """
    A completed checkpoint of a job that somebody waits for.

    :raises InvalidConfigurationError: for a name or a bound out of its range.
    """

    job: str
    """The name under which the job is kept."""
    uid: str | None = None
    """The operator; ``None`` for any of the job."""
    at_least: int | None = None
    """The lowest id that will do."""
    max_age: timedelta | None = None
    """How long ago it may have been completed."""

    def __post_init__(self) -> None:
        job_id_of(self.job)
        if self.uid is not None:
            operator_id_of(self.uid)
        require("at_least", self.at_least, lambda n: n is None or n >= 1, "a checkpoint id, 1 or more")
        require("max_age", self.max_age, lambda age: age is None or age > timedelta(0), "longer than nothing")

    @property
    def job_id(self) -> JobId:
        """Return the id of the job."""
        return job_id_of(self.job)

    def find(self, view: JobView) -> dict[str, Any] | None:
        """
        Return the newest checkpoint that will do, as plain values, ``None`` if there is none yet.

        :param view: What is kept of the job.
        """
        # Two operators complete their checkpoints in any order, so the one with the highest id need not be the youngest.
        fitting = [c for c in view.checkpoints if self._is_met_by(c, view.read_at)]
        return _plain(view, fitting[-1]) if fitting else None

    def unknown_operator(self, view: JobView) -> str | None:
        """Return which operators the job has if the awaited one is none of them, ``None`` if it is."""
        uids = sorted(operator.uid for operator in view.operators)
        if self.uid is None or self.uid in uids:
            return None
        shown = ", ".join(map(repr, uids[:_MOST_UIDS])) + (", ..." if len(uids) > _MOST_UIDS else "")
        return f"Job {self.job!r} has no operator {self.uid!r} so far; it has {shown or 'none'}."

    def __str__(self) -> str:
        operator = "any operator" if self.uid is None else f"operator {self.uid!r}"
        at_least = "" if self.at_least is None else f", id {self.at_least} or later"
        max_age = "" if self.max_age is None else f", at most {self.max_age} old"
        return f"a completed checkpoint of {operator} of job {self.job!r}{at_least}{max_age}"

    def _is_met_by(self, checkpoint: CheckpointRecord, now: datetime) -> bool:
        return (
            checkpoint.is_restorable
            and checkpoint.unusable_reason is None
            and (self.uid is None or checkpoint.operator_id == operator_id_of(self.uid))
            and (self.at_least is None or checkpoint.checkpoint_id >= self.at_least)
            and self._is_young_enough(checkpoint, now)
        )

    def _is_young_enough(self, checkpoint: CheckpointRecord, now: datetime) -> bool:
        # Both times are the coordinator's. The job's last transition would not do for "now": a job that has stopped
        # would stay young for ever; nor would this machine's clock, which may differ from the one that dated the row.
        completed_at = checkpoint.completed_at
        return self.max_age is None or (completed_at is not None and now - completed_at <= self.max_age)


def _plain(view: JobView, checkpoint: CheckpointRecord) -> dict[str, Any]:
    uids = {operator.operator_id: operator.uid for operator in view.operators}
    completed_at = checkpoint.completed_at
    return {
        "job": view.job.name,
        "uid": uids[checkpoint.operator_id],
        "checkpoint_id": checkpoint.checkpoint_id,
        "pointer": checkpoint.location,
        "completed_at": None if completed_at is None else completed_at.isoformat(),
    }


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

    async def _look(self, reader: JobReader, awaited: CheckpointCondition) -> dict[str, Any] | None:
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

    def _awaited(self) -> CheckpointCondition:
        max_age = None if self.max_age_seconds is None else timedelta(seconds=self.max_age_seconds)
        return CheckpointCondition(job=self.job, uid=self.uid, at_least=self.at_least, max_age=max_age)

    def _access(self) -> ReadingAccess | None:
        if self.url is None or self.token is None:
            return None
        return ReadingAccess(url=self.url, token=self.token, timeout_seconds=self.request_timeout_seconds)


def _passes(error: StateCheckError) -> bool:
    # An api-server that is upgraded answers that its tables are not ready until they are migrated.
    return error.retryable or isinstance(error, EnvironmentNotReadyError)
