"""Trigger that waits for a checkpoint, and its condition."""

from __future__ import annotations

from asyncio import sleep
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.masking import masked
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
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from airflow_provider_statecheck.hooks.transport import JobReader


_MAX_SHOWN_UIDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCondition:
    """
    Condition that a completed checkpoint of a job must meet.

    :raises InvalidConfigurationError: if a name or a bound is invalid.
    """

    job: str
    """Name of the job, with the prefix of test runs if it is one of a test run."""
    uid: str | None = None
    """Uid of the operator, or ``None`` for any operator."""
    at_least: int | None = None
    """Lowest checkpoint id to accept."""
    max_age: timedelta | None = None
    """Maximum time since the checkpoint was completed."""

    def __post_init__(self) -> None:
        job_id_of(self.job)
        if self.uid is not None:
            operator_id_of(self.uid)
        require("at_least", self.at_least, lambda n: n is None or n >= 1, "a checkpoint id, 1 or more")
        require("max_age", self.max_age, lambda age: age is None or age > timedelta(0), "a positive duration")

    @property
    def job_id(self) -> JobId:
        """The id of the job."""
        return job_id_of(self.job)

    def find(self, view: JobView) -> dict[str, Any] | None:
        """
        Return the checkpoint with the highest id that meets the condition, as plain values, or ``None``.

        :param view: The job.
        """
        # Operators complete their checkpoints in any order: the highest id need not be the latest completion.
        # After a fresh start, those before it are not restored any more, and are deleted when a new one is complete.
        generations = {operator.operator_id: operator.generation for operator in view.operators}
        current = (c for c in view.checkpoints if c.generation == generations.get(c.operator_id))
        matching = [c for c in current if self._is_met_by(c, view.read_at)]
        return _plain(view, matching[-1]) if matching else None

    def unknown_operator(self, view: JobView) -> str | None:
        """Return a warning with the operators of the job if ``uid`` is not one of them, otherwise ``None``."""
        uids = sorted(operator.uid for operator in view.operators)
        if self.uid is None or self.uid in uids:
            return None
        shown = ", ".join(map(repr, uids[:_MAX_SHOWN_UIDS])) + (", ..." if len(uids) > _MAX_SHOWN_UIDS else "")
        return f"Job {self.job!r} has no operator {self.uid!r} so far; it has {shown or 'none'}."

    def __str__(self) -> str:
        operator = "any operator" if self.uid is None else f"operator {self.uid!r}"
        at_least = "" if self.at_least is None else f", id {self.at_least} or later"
        max_age = "" if self.max_age is None else f", at most {self.max_age} old"
        return f"a completed checkpoint of {operator} of job {self.job!r}{at_least}{max_age}"

    def _is_met_by(self, checkpoint: CheckpointRecord, now: datetime) -> bool:
        return (
            checkpoint.is_usable
            and (self.uid is None or checkpoint.operator_id == operator_id_of(self.uid))
            and (self.at_least is None or checkpoint.checkpoint_id >= self.at_least)
            and self._is_recent(checkpoint, now)
        )

    def _is_recent(self, checkpoint: CheckpointRecord, now: datetime) -> bool:
        # Both times are from the coordinator, because the clock of this machine may differ. The time of the last
        # transition of the job does not serve as "now": the checkpoints of a stopped job would never age.
        completed_at = checkpoint.completed_at
        return self.max_age is None or (completed_at is not None and now - completed_at <= self.max_age)


def _plain(view: JobView, checkpoint: CheckpointRecord) -> dict[str, Any]:
    uids = {operator.operator_id: operator.uid for operator in view.operators}
    completed_at = checkpoint.completed_at
    return {
        "job": view.job.name,
        "uid": uids[checkpoint.operator_id],
        "checkpoint_id": checkpoint.checkpoint_id,
        # An XCom is displayed, and a pointer with credentials is refused anyway.
        "pointer": redact(checkpoint.location),
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
    Fires when a job has a checkpoint that meets the condition.

    The event is ``{"status": "success", "checkpoint": {...}}``, ``{"status": "error", "message": ...}``, or
    ``{"status": "expired", "deadline": ...}`` if the token expired during an outage; the task must then defer again
    with a new token. Without ``url`` and ``token``, the trigger reads Airflow's database directly.

    :param job: Name of the job.
    :param uid: Uid of the operator within the job. The default is any operator.
    :param at_least: Lowest checkpoint id to accept.
    :param max_age_seconds: Maximum time since the checkpoint was completed, in seconds.
    :param poke_interval: Seconds between two checks.
    :param url: Root URL of the api-server.
    :param token: Read token of the job.
    :param request_timeout_seconds: Timeout of a request, in seconds.
    :param deadline: Timeout of the task as a POSIX time, which the trigger returns unchanged in the event.
    """

    _renewed_at: float
    """Monotonic time of the last renewal of the token."""

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
        """Return the class path and the arguments, including the token, which Airflow 3.3 stores unencrypted."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in _ARGUMENTS}

    @override
    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Check until the checkpoint exists; Airflow cancels the trigger at the timeout of the task."""
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
            self.log.warning("The task needs a new token: %s", error)
            return {"status": "expired", "deadline": self.deadline}
        except StateCheckError as error:
            message = masked(f"Cannot wait for a checkpoint of job {self.job!r}: {error}")
            return {"status": "error", "message": message}

    async def _wait(self, reader: JobReader) -> dict[str, Any]:
        condition, self._renewed_at = self._condition(), monotonic()
        self.log.info("Waiting for %s.", condition)
        while True:
            found = await self._check(reader, condition)
            if found is not None:
                return found
            await self._pause(reader)

    async def _check(self, reader: JobReader, condition: CheckpointCondition) -> dict[str, Any] | None:
        try:
            view = await reader.describe(condition.job_id)
        except CheckpointNotFoundError:
            return None  # the job has no attempt yet
        except (CoordinatorError, EnvironmentNotReadyError) as error:
            if not _is_transient(error):
                raise
            self.log.warning("Retrying in %s s: %s", self.poke_interval, error)
            return None
        self._warn_once(condition.unknown_operator(view))
        return condition.find(view)

    def _warn_once(self, warning: str | None) -> None:
        if warning is not None and warning != self._warning:
            self.log.warning("%s", warning)
        self._warning = warning

    async def _pause(self, reader: JobReader) -> None:
        # The token must be renewed during a pause that is longer than its validity.
        remaining = self.poke_interval
        while True:
            await sleep(min(remaining, RENEWAL_SECONDS))
            remaining -= RENEWAL_SECONDS
            if monotonic() - self._renewed_at >= RENEWAL_SECONDS:
                await self._renew(reader)
            if remaining <= 0:
                return

    async def _renew(self, reader: JobReader) -> None:
        try:
            await reader.renew()
            self._renewed_at = monotonic()
        except (CoordinatorError, EnvironmentNotReadyError) as error:
            if not _is_transient(error):
                raise
            self.log.warning("Retrying the renewal of the read token later: %s", error)

    def _condition(self) -> CheckpointCondition:
        max_age = None if self.max_age_seconds is None else timedelta(seconds=self.max_age_seconds)
        return CheckpointCondition(job=self.job, uid=self.uid, at_least=self.at_least, max_age=max_age)

    def _access(self) -> ReadingAccess | None:
        if self.url is None or self.token is None:
            return None
        return ReadingAccess(url=self.url, token=self.token, timeout_seconds=self.request_timeout_seconds)


def _is_transient(error: StateCheckError) -> bool:
    # During an upgrade, the api-server reports missing tables until they are migrated.
    return error.retryable or isinstance(error, EnvironmentNotReadyError)
