"""Limits of requests for queryable state: rate, number of keys, and size of answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Annotated

from fastapi import Depends, Request

from airflow_provider_statecheck.api.job_access import Checked, JobAccess, JobGrant, decide, remember
from airflow_provider_statecheck.checkpoint.clock import Clock, SystemClock
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.exceptions import RequestLimitError

MAX_KEYS = 1_000
"""Maximum number of keys of a batch."""
MAX_TEXT = 16_384
"""Maximum number of characters of the key, the namespace and the user key of a single query."""
MAX_ANSWER_BYTES = 8 << 20
"""Maximum size of an answer."""
_MAX_CALLERS = 10_000


class RequestRate:
    """
    Limit of the requests of each caller in a process: a token bucket that holds the requests of one second.

    :param per_second: Returns the maximum number of requests per second and caller; 0 for any number.
    :param clock: Clock of the server.
    """

    def __init__(self, per_second: Callable[[], float], clock: Clock | None = None) -> None:
        self._per_second = per_second
        self._clock = clock or SystemClock()
        self._left: dict[str, tuple[float, datetime]] = {}

    def admit(self, caller: str) -> None:
        """
        Count a request of a caller.

        :raises RequestLimitError: if the caller has sent too many; it says when the next one is accepted.
        """
        rate = self._per_second()
        if not rate:
            return
        now, most = self._clock.now(), max(1.0, rate)
        left, at = self._left.get(caller, (most, now))
        left = min(most, left + max(0.0, (now - at).total_seconds()) * rate)
        # A caller that is forgotten starts with a full bucket again.
        remember(self._left, caller, (left - 1 if left >= 1 else left, now), _MAX_CALLERS)
        if left < 1:
            raise RequestLimitError(
                f"Expected at most {rate:g} requests per second of this caller, found more; send the next one after the "
                f"time in the header Retry-After, or ask for several keys at once.",
                retry_after_seconds=(1 - left) / rate,
            )


class RatedAccess:
    """
    Access whose callers are counted.

    :param access: Decides who may read a job, and identifies the caller.
    :param rate: Limit of the requests of each caller.
    """

    def __init__(self, access: JobAccess, rate: RequestRate) -> None:
        self._access = access
        self._rate = rate

    async def require(self, request: Request, job_id: JobId) -> JobGrant:
        """
        Return the permission of the sender; raises as ``JobAccess.require``.

        :raises RequestLimitError: as :meth:`RequestRate.admit`.
        """
        grant = await self._access.require(request, job_id)
        self._rate.admit(grant.caller)
        return grant


def require_few_keys(count: int) -> None:
    """
    Check the number of keys of a batch.

    :raises RequestLimitError: for more than :data:`MAX_KEYS`.
    """
    if count > MAX_KEYS:
        raise RequestLimitError(f"Expected at most {MAX_KEYS} keys, found {count}; split them into several requests.")


def require_short(texts: Sequence[str]) -> None:
    """
    Check the length of the key, the namespace and the user key of a single query.

    :raises RequestLimitError: for more than :data:`MAX_TEXT` characters.
    """
    length = sum(map(len, texts))
    if length > MAX_TEXT:
        raise RequestLimitError(
            f"Expected a key, a namespace and a user key of at most {MAX_TEXT} characters together, found {length}; send "
            f"them in the body of a POST request."
        )


def small_json(parts: Iterable[str]) -> bytes:
    """
    Return the JSON of an answer, whose parts are made one by one.

    :param parts: The parts, see :func:`~airflow_provider_statecheck.checkpoint.codec.json_parts`.
    :raises RequestLimitError: for more than :data:`MAX_ANSWER_BYTES`.
    """
    text = bytearray()
    for part in parts:
        text += part.encode()
        if len(text) > MAX_ANSWER_BYTES:
            raise RequestLimitError(
                f"Expected an answer of at most {MAX_ANSWER_BYTES} bytes, found a larger one; ask for fewer keys at once, or "
                f"for one entry of a map with user_key, or read the state with read_state."
            )
    return bytes(text)


def retry_after(error: RequestLimitError) -> dict[str, str]:
    """Return the header that says when the request is accepted, if ever."""
    seconds = error.retry_after_seconds
    return {} if seconds is None else {"Retry-After": str(math.ceil(seconds))}


async def check_state_access(request: Request) -> JobGrant:
    """
    Return the permission of the sender to read the state of the job in the path now.

    :raises AccessDeniedError: as ``job_access.decide``.
    :raises RequestLimitError: as :meth:`RequestRate.admit`.
    """
    return await decide(request, request.app.state.state_access)


StateGrantDep = Annotated[JobGrant, Depends(Checked(check_state_access))]
