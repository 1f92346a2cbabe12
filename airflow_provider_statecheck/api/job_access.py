"""
Permission to read one job: its rows and its queryable state.

The server of an Airflow deployment accepts tokens of this API and users of Airflow, a stand-alone server asks the API.
Reads of state are frequent and short, so a granted permission is remembered for a few seconds. A refusal is not.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Protocol, TypeVar

from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from airflow_provider_statecheck.checkpoint.clock import Clock, SystemClock
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.exceptions import AccessDeniedError, CheckpointNotFoundError
from airflow_provider_statecheck.metadata.token_records import TokenRecord, UserCaller

Key = TypeVar("Key")
Value = TypeVar("Value")

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
        ...


class TokenAccess:
    """
    Access with tokens of this API.

    :param check: Returns the record of a valid token.
    """

    def __init__(self, check: Callable[[str], TokenRecord]) -> None:
        self._check = check

    async def require(self, request: Request, job_id: JobId) -> JobGrant:
        """Return the permission of the sender; raises as :meth:`JobAccess.require`."""
        token = await run_in_threadpool(self._check, await bearer_token(request))
        require_job(token, job_id)
        return JobGrant(caller=_caller_of(token), expires_at=token.expires_at)


class RememberedAccess:
    """
    Access that remembers for a few seconds what another one has granted.

    :param access: Decides where nothing is remembered.
    :param clock: Clock of the server.
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


def require_job(token: TokenRecord, job_id: JobId) -> None:
    """
    Require a token that may read a job: one bound to this job, or one not yet bound to any job.

    :raises AccessDeniedError: if the token is bound to another job.
    """
    if token.job_id not in (None, job_id):
        raise AccessDeniedError(
            f"Expected a token of job {job_id}, found one of job {token.job_id}; request a new token."
        )


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


async def decide(request: Request, access: JobAccess) -> JobGrant:
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
    return await access.require(request, JobId(job_id))


async def _check_job_access(request: Request) -> JobGrant:
    return await decide(request, request.app.state.job_access)


JobGrantDep = Annotated[JobGrant, Depends(Checked(_check_job_access))]


def _caller_of(token: TokenRecord) -> str:
    caller = token.caller
    return f"user {caller.user}" if isinstance(caller, UserCaller) else f"task {caller.coordinates}"


def _hash_of_credentials(request: Request) -> bytes | None:
    # The memory of the server holds no tokens of requests that are over. A header may be sent several times; with their
    # lengths, the values of one request cannot be read as those of another.
    headers = request.headers
    sent = [f"{name}:{len(each)}:{each}" for name in ("authorization", "cookie") for each in headers.getlist(name)]
    return hashlib.sha256("".join(sent).encode()).digest() if sent else None


def _has_expired(grant: JobGrant, now: datetime) -> bool:
    return grant.expires_at is not None and grant.expires_at <= now
