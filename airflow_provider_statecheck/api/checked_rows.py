"""
Permission to read one job, and its rows for requests that have checked the version of the job.

Concurrent requests share a check. At an api-server, the caller of a request is authorized before. On a stand-alone
server, the check is a call of the api-server with the token of the caller, and its reply says two things: the caller
may read the job, and which checkpoints are its newest ones. The first concerns this caller only, the second is the same
for all. Callers that were authorized a short time ago therefore share checks, and every caller is authorized by a check
with its own token.

The server of an Airflow deployment accepts tokens of this API and users of Airflow, a stand-alone server asks the API.
Reads of state are frequent and short, so a granted permission is remembered for a few seconds. A refusal is not.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any, Protocol, TypeVar

from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from airflow_provider_statecheck.cached_reads import LruCache, about_to_wait
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.records import Clock, RowsVersion, SystemClock
from airflow_provider_statecheck.checkpoint.store import JobView, LatestCheckpoints
from airflow_provider_statecheck.exceptions import (
    AccessDeniedError,
    CheckpointNotFoundError,
    CoordinatorError,
    StateCheckError,
)
from airflow_provider_statecheck.queryable.oracle import LatestRows

Key = TypeVar("Key")

REMEMBERED = timedelta(seconds=5)
"""Time for which a granted permission is used without another check, also if the token is revoked in the meantime."""
_MAX_REMEMBERED = 10_000
_JOB_ID = re.compile("[0-9a-f]{32}")

bearer = HTTPBearer(auto_error=False, description="A token issued by this API.")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGrant:
    """Permission to read one job."""

    caller: str
    """Identifies the caller, whose requests are counted together."""
    expires_at: datetime | None = None
    """End of the validity of the caller's token; ``None`` if it is unknown."""


class JobAccess(Protocol):
    """Decides who may read a job."""

    async def require(self, request: Request, job_id: JobId) -> JobGrant:
        """
        Return the permission of the sender of a request.

        :raises AccessDeniedError: if the credentials are missing or invalid, or a token belongs to another job.
        :raises TokenExpiredError: if the token has expired.
        :raises CheckpointNotFoundError: if the job does not exist, or not for this user.
        """


class RememberedAccess:
    """
    Access that remembers for a few seconds what another one has granted.

    :param access: Decides where nothing is remembered.
    """

    def __init__(self, access: JobAccess, clock: Clock | None = None) -> None:
        self._access = access
        self._clock = clock or SystemClock()
        self._granted: dict[tuple[bytes, JobId], tuple[JobGrant, datetime]] = {}

    async def require(self, request: Request, job_id: JobId) -> JobGrant:
        """Return the permission of the sender; raises as :meth:`JobAccess.require`."""
        credentials = _hash_of_credentials(request)
        if credentials is None:
            return await self._access.require(request, job_id)
        key, now = (credentials, job_id), self._clock.now()
        grant, granted_at = self._granted.get(key, (None, now))
        # After a correction of the clock, a grant may be from the future.
        if grant is not None and now - REMEMBERED < granted_at <= now and not _has_expired(grant, now):
            return grant
        grant = await self._access.require(request, job_id)
        remember(self._granted, key, (grant, now), _MAX_REMEMBERED)
        return grant


def remember(values: dict[Key, Value], key: Key, value: Value, limit: int) -> None:
    """Put a value last, and drop the first one above the limit, which is the oldest one."""
    values.pop(key, None)
    values[key] = value
    if len(values) > limit:
        del values[next(iter(values))]


async def bearer_token(request: Request) -> str:
    """
    Return the token of a request.

    :raises AccessDeniedError: if the token is missing, or cannot be a token of this API.
    """
    header = await bearer(request)
    if header is None or not header.credentials:
        raise AccessDeniedError("Expected a token in the header Authorization, found none; request one first.")
    token = header.credentials
    if not (token.isascii() and token.isprintable()):
        raise AccessDeniedError("Expected a token of printable ASCII characters, found others; request a new token.")
    return token


class Checked:
    """
    Dependency on a check of the sender, which a ``MessageRoute`` makes before it reads the message.

    :param check: Returns the result of the check, on which the route depends.
    """

    def __init__(self, check: Callable[[Request], Awaitable[Any]]) -> None:
        self.check = check

    async def __call__(
        self, request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]
    ) -> Any:
        """Return the result of the check."""
        return request.state.checked


async def check_job_access(request: Request) -> JobGrant:
    """
    Return the permission of the sender to read the job in the path.

    :raises AccessDeniedError: as :meth:`JobAccess.require`.
    :raises CheckpointNotFoundError: if the path has no id of a job.
    """
    job_id = request.path_params["job_id"]
    if not _JOB_ID.fullmatch(job_id):
        raise CheckpointNotFoundError(
            f"Expected the id of a job, 32 hexadecimal digits, in the path, found {job_id[:64]!a}; correct it."
        )
    access: JobAccess = request.app.state.job_access
    return await access.require(request, JobId(job_id))


JobGrantDep = Annotated[JobGrant, Depends(Checked(check_job_access))]


def _hash_of_credentials(request: Request) -> bytes | None:
    # The memory of the server holds no tokens of requests that are over. A header may be sent several times; with their
    # lengths, the values of one request cannot be read as those of another.
    headers = request.headers
    sent = [f"{name}:{len(each)}:{each}" for name in ("authorization", "cookie") for each in headers.getlist(name)]
    return hashlib.sha256("".join(sent).encode()).digest() if sent else None


def _has_expired(grant: JobGrant, now: datetime) -> bool:
    return grant.expires_at is not None and grant.expires_at <= now


Value = TypeVar("Value")

ReadLatest = Callable[[JobId, str, RowsVersion | None], Awaitable[LatestCheckpoints | None]]
"""Reads the newest checkpoints of a job with a token; ``None`` if the job has the known version."""

GRANT_SECONDS = REMEMBERED.total_seconds()
"""Time for which a caller that the api-server has authorized may share the checks of other callers."""
AUTHORIZED = ""
"""In place of the token of a caller that is authorized without a check."""
MAX_JOBS = 1_000
_MAX_GRANTS = 100_000


@dataclass(frozen=True, slots=True)
class _View:
    latest: LatestCheckpoints
    checked_at: float
    """When the check began that returned or confirmed the checkpoints."""


class CheckedRows:
    """
    Rows whose versions are checked in one event loop, and read by any thread.

    :param read: Reads the newest checkpoints of a job for a check, by default from the rows.
    :param max_staleness_seconds: Age of a check up to which no new one is made; 0 for a check per request.
    :param now: Monotonic clock, in seconds.
    """

    def __init__(
        self,
        rows: LatestRows,
        read: ReadLatest | None = None,
        *,
        max_staleness_seconds: float = 0.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rows = rows
        self._read = read or self._read_rows
        self._max_staleness = max_staleness_seconds
        self._now = now
        self._views = LruCache[JobId, _View](MAX_JOBS, lambda _: 1)
        self._granted_at: dict[tuple[JobId, bytes], float] = {}
        self._calls = SharedCalls()

    async def check(self, job_id: JobId, token: str = AUTHORIZED) -> LatestCheckpoints:
        """
        Return the newest checkpoints of a job to a caller that may read them, and read them if its version has changed.

        They are not older than the call, or than the greatest staleness before it.

        :raises StateCheckError: if the rows refuse the call, or the connection to them fails.
        """
        if not self._is_granted(job_id, token):
            return await self._checked(job_id, token)
        view = self._views.get(job_id) if self._max_staleness else None
        if view is not None and self._now() - view.checked_at < self._max_staleness:
            return view.latest
        try:
            return await self._calls.join(job_id, partial(self._check, job_id, token))
        except StateCheckError as error:
            if error.retryable or token == AUTHORIZED:
                raise
            # The check may have been made, and refused, with the token of another caller.
            return await self._checked(job_id, token)

    def latest_checkpoints(self, job_id: JobId, known_version: RowsVersion | None = None) -> LatestCheckpoints | None:
        """
        Return the newest checkpoints of a job, or ``None`` if the version is the known one.

        With a known version they are those of the last check, otherwise they are read again.
        """
        view = None if known_version is None else self._views.get(job_id)
        if view is None:
            about_to_wait()
            return self._read_again(job_id, known_version)
        return None if view.latest.job.rows_version == known_version else view.latest

    def describe(self, job_id: JobId) -> JobView:
        """Return a job with its newest checkpoints."""
        return self._rows.describe(job_id)

    def forget(self, job_id: JobId) -> None:
        """Let the next check of a job read its newest checkpoints, which have changed."""
        self._views.remove(job_id)

    def _read_again(self, job_id: JobId, known_version: RowsVersion | None) -> LatestCheckpoints | None:
        began = self._now()
        found = self._rows.latest_checkpoints(job_id, known_version)
        if found is not None and self._max_staleness:
            # No check may follow for a while, and the last one has an older version.
            self._newest(job_id, found, began)
        return found

    async def _read_rows(self, job_id: JobId, _: str, known_version: RowsVersion | None) -> LatestCheckpoints | None:
        return await run_in_threadpool(self._rows.latest_checkpoints, job_id, known_version)

    async def _checked(self, job_id: JobId, token: str) -> LatestCheckpoints:
        return await self._calls.join(_grant(job_id, token), partial(self._check, job_id, token))

    async def _check(self, job_id: JobId, token: str) -> LatestCheckpoints:
        began, known = self._now(), self._views.get(job_id)
        try:
            found = await self._read(job_id, token, None if known is None else known.latest.job.rows_version)
        except StateCheckError as error:
            if not error.retryable and token != AUTHORIZED:
                self._granted_at.pop(_grant(job_id, token), None)
            raise
        if token != AUTHORIZED:
            remember(self._granted_at, _grant(job_id, token), began, _MAX_GRANTS)
        return self._newest(job_id, _one_of(found, known), began)

    def _newest(self, job_id: JobId, found: LatestCheckpoints, began: float) -> LatestCheckpoints:
        # Checks of two callers may overlap. The one that began last has the newest checkpoints.
        last = self._views.get(job_id)
        if last is not None and last.checked_at > began:
            return last.latest
        self._views.put(job_id, _View(found, began))
        return found

    def _is_granted(self, job_id: JobId, token: str) -> bool:
        if token == AUTHORIZED:
            return True
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
