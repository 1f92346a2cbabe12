"""
Version checks of jobs at an api-server, each with the token of a caller.

The reply to a check says two things: the caller may read the job, and which checkpoints are its newest ones. The first
concerns this caller only, the second is the same for all. Callers that were authorized a short time ago therefore share
checks, and every caller is authorized by a check with its own token.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from airflow_provider_statecheck.api.job_access import REMEMBERED, remember
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.records import RowsVersion
from airflow_provider_statecheck.checkpoint.store import LatestCheckpoints
from airflow_provider_statecheck.exceptions import CoordinatorError, StateCheckError

Value = TypeVar("Value")

ReadLatest = Callable[[JobId, str, RowsVersion | None], Awaitable[LatestCheckpoints | None]]
"""Reads the newest checkpoints of a job with a token; ``None`` if the job has the known version."""

GRANT_SECONDS = REMEMBERED.total_seconds()
"""Time for which a caller that the api-server has authorized may share the checks of other callers."""
_MAX_JOBS = 1_000
_MAX_GRANTS = 100_000


@dataclass(frozen=True, slots=True)
class _View:
    latest: LatestCheckpoints
    checked_at: float
    """When the check began that returned or confirmed the checkpoints."""


class CallerChecks:
    """
    Authorization of callers and newest checkpoints of jobs; belongs to one event loop.

    :param read: Reads the newest checkpoints of a job.
    :param max_staleness_seconds: Age of a check up to which no new one is made; 0 for a check per request.
    :param now: Monotonic clock, in seconds.
    """

    def __init__(
        self, read: ReadLatest, *, max_staleness_seconds: float = 0.0, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._read = read
        self._max_staleness = max_staleness_seconds
        self._now = now
        self._views: dict[JobId, _View] = {}
        self._granted_at: dict[tuple[JobId, bytes], float] = {}
        self._calls = SharedCalls()

    async def latest(self, job_id: JobId, token: str, *, refresh: bool = False) -> LatestCheckpoints:
        """
        Return the newest checkpoints of a job to a caller that may read them.

        They are not older than the call, or than the greatest staleness before it.

        :param token: Token of the caller.
        :param refresh: Check the version even if a recent check is known.
        :raises StateCheckError: the error of the api-server, or of the connection to it.
        """
        if not self._is_granted(job_id, token):
            return await self._checked(job_id, token)
        view = self._views.get(job_id)
        if view is not None and not refresh and self._now() - view.checked_at < self._max_staleness:
            return view.latest
        try:
            return await self._calls.join(job_id, partial(self._check, job_id, token))
        except StateCheckError as error:
            if error.retryable:
                raise
            # The check may have been made, and refused, with the token of another caller.
            return await self._checked(job_id, token)

    def known(self, job_id: JobId) -> LatestCheckpoints | None:
        """Return the result of the last check of a job, or ``None``; may be called by any thread."""
        view = self._views.get(job_id)
        return None if view is None else view.latest

    async def _checked(self, job_id: JobId, token: str) -> LatestCheckpoints:
        return await self._calls.join(_grant(job_id, token), partial(self._check, job_id, token))

    async def _check(self, job_id: JobId, token: str) -> LatestCheckpoints:
        began, known = self._now(), self._views.get(job_id)
        try:
            found = await self._read(job_id, token, None if known is None else known.latest.job.rows_version)
        except StateCheckError as error:
            if not error.retryable:
                self._granted_at.pop(_grant(job_id, token), None)
            raise
        remember(self._granted_at, _grant(job_id, token), began, _MAX_GRANTS)
        return self._newest(job_id, _one_of(found, known), began)

    def _newest(self, job_id: JobId, found: LatestCheckpoints, began: float) -> LatestCheckpoints:
        # Checks of two callers may overlap. The one that began last has the newest checkpoints.
        last = self._views.get(job_id)
        if last is not None and last.checked_at > began:
            return last.latest
        remember(self._views, job_id, _View(found, began), _MAX_JOBS)
        return found

    def _is_granted(self, job_id: JobId, token: str) -> bool:
        granted_at = self._granted_at.get(_grant(job_id, token))
        return granted_at is not None and self._now() - granted_at < GRANT_SECONDS


def _one_of(found: LatestCheckpoints | None, known: _View | None) -> LatestCheckpoints:
    if found is not None:
        return found
    if known is None:
        raise CoordinatorError(
            "Expected the newest checkpoints of a job whose version is unknown here, found none in the reply of the "
            "api-server; install the same version of this provider there."
        )
    return known.latest


def _grant(job_id: JobId, token: str) -> tuple[JobId, bytes]:
    # The memory of the server holds no tokens of requests that are over.
    return job_id, hashlib.sha256(token.encode()).digest()


class SharedCalls:
    """Calls that are shared by all who ask for them before they begin."""

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Task[Any]] = {}
        self._waiting: dict[Hashable, asyncio.Task[Any]] = {}

    async def join(self, key: Hashable, call: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
        """
        Return the result of a call that began after this one.

        At most one call of a key runs at a time; the next one begins at its end.

        :param key: Identifies the call.
        :param call: The call, used by the first who asks.
        """
        shared: asyncio.Task[Value] | None = self._waiting.get(key)
        if shared is None:
            shared = self._waiting[key] = asyncio.create_task(self._run(key, call))
            shared.add_done_callback(_note_error)
        # A caller that goes away must not cancel the call of the others.
        return await asyncio.shield(shared)

    async def _run(self, key: Hashable, call: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
        before = self._running.get(key)
        if before is not None:
            await asyncio.wait((before,))
        self._running[key] = self._waiting.pop(key)
        try:
            return await call()
        finally:
            del self._running[key]


def _note_error(shared: asyncio.Task[Any]) -> None:
    # If all callers have gone away, asyncio would log an error that was never retrieved.
    if not shared.cancelled():
        shared.exception()
