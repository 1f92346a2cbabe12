"""Reads of queryable state in an event loop, and limits of their rate, keys and size."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Annotated, TypeVar

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar
from fastapi import Depends, Request

from airflow_provider_statecheck.api.checked_rows import Checked, CheckedRows, JobGrant, check_job_access, remember
from airflow_provider_statecheck.cached_reads import WouldWaitError, without_waiting
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.records import Clock, JobRecord, SystemClock
from airflow_provider_statecheck.exceptions import (
    EnvironmentNotReadyError,
    LocationNotAllowedError,
    RequestLimitError,
    StorageError,
)
from airflow_provider_statecheck.gateway.in_process import Change, JobRemoval
from airflow_provider_statecheck.gateway.time_travel import AsOf
from airflow_provider_statecheck.queryable.locations import OpenStorage
from airflow_provider_statecheck.queryable.proxy import KvStateClientProxy, StateProxy
from airflow_provider_statecheck.queryable.queries import QueryableName, StateQuery, StateReply
from airflow_provider_statecheck.storage.bounds import bounded_decoding
from airflow_provider_statecheck.storage.failures import is_refused
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.large_files import one_large_at_a_time
from airflow_provider_statecheck.storage.uris import redact

Answer = TypeVar("Answer")

MAX_READS_AT_ONCE = 8
"""Maximum number of threads of an event loop that read the storage."""
MAX_PREVIEWS_AT_ONCE = 2
"""
Maximum number of further threads of an event loop that let another process decode rows.

Such a process takes up to a minute for what a hostile job wrote. Reads of state must not wait for it.
"""
LONGEST_WAIT_SECONDS = 20.0
"""Longest wait for other reads of large files, of which a server holds one at a time."""
_limits: RunVar[dict[int, CapacityLimiter] | None] = RunVar("_limits", None)
"""Limits of the threads of each event loop, by their number."""


class ProxyReads:
    """
    Reads through a proxy, of single keys that are cached in the event loop, and all others in threads.

    :param check: Checks the version of a job before a read.
    """

    def __init__(self, proxy: Callable[[], StateProxy], check: Callable[[JobId], Awaitable[object]]) -> None:
        self._proxy = proxy
        self._check = check

    async def get(self, query: StateQuery, answer: Callable[[StateReply], Answer], *, is_short: bool = False) -> Answer:
        """
        Return the answer to a query; raises as ``StateProxy.get``.

        :param answer: Makes the answer from the reply.
        :param is_short: Whether the answer takes microseconds if all that it needs is cached. It is then made in the
            event loop, otherwise in a thread.
        """
        proxy = self._proxy()
        await self._check(query.job_id)
        if is_short and query.as_of.is_latest:
            with suppress(WouldWaitError), without_waiting():
                return answer(proxy.get(query))
        return await read_in_thread(lambda: answer(proxy.get(query)))

    async def names(self, job_id: JobId, as_of: AsOf) -> tuple[QueryableName, ...]:
        """
        Return the queryable states of a job, first the served and then the refused ones.

        Raises as ``StateProxy.names``.
        """
        proxy = self._proxy()
        await self._check(job_id)
        return await read_in_thread(lambda: proxy.names(job_id, as_of))


class ServedJobs:
    """
    Observer that passes the changes of the coordinator in this process on to its readers of state.

    Changes of other processes are found by the version of the job.

    :param rows: Rows that the readers share.
    :param proxy: Proxy with the oracles of the jobs.
    """

    def __init__(self, rows: CheckedRows, proxy: KvStateClientProxy) -> None:
        self._rows = rows
        self._proxy = proxy

    def changed(self, job: JobRecord, change: Change) -> None:
        """Note a committed change of a job."""
        self._rows.forget(job.job_id)
        if isinstance(change, JobRemoval):
            self._proxy.update_kv_state_location_oracle(job.job_id, None)


SERVE_ELSEWHERE = (
    "run 'airflow statecheck serve-state' on a machine that can read the checkpoint storage, and send requests for "
    "state to that server."
)


def storage_here(open_storage: OpenStorage, option: str) -> OpenStorage:
    """
    Return a function that opens storage, with an error that says what to do if this server cannot use it.

    :param option: Option of this server that names the connection with the credentials of the storage.
    """

    def opened(pointer: str) -> CheckpointStorage:
        try:
            storage = open_storage(pointer)
        except LocationNotAllowedError:
            raise
        except Exception as error:
            raise _unusable(pointer, str(error), option) from error
        if storage.is_local and not _is_here(storage, pointer):
            raise _unusable(pointer, "that this machine has no such directory", option)
        return storage

    return opened


def _is_here(storage: CheckpointStorage, pointer: str) -> bool:
    # A checkpoint that was deleted is missing on each machine.
    try:
        return storage.is_directory(pointer) or storage.is_directory(pointer.rpartition("/")[0])
    except LocationNotAllowedError:
        return True


async def preview_in_thread(read: Callable[[], Answer]) -> Answer:
    """
    Return the result of a read with :func:`preview` as :func:`read_in_thread`.

    Other previews wait, and no other reads.
    """
    return await to_thread.run_sync(_reading, read, limiter=_limit_of_loop(MAX_PREVIEWS_AT_ONCE))


async def read_in_thread(read: Callable[[], Answer]) -> Answer:
    """
    Return the result of a read of the storage, which a thread makes.

    The reads have threads of their own, so a slow storage does not stop the other routes of a server. Version checks
    use the threads of those routes, which wait for the same database.

    :raises EnvironmentNotReadyError: if the storage refuses this server.
    """
    return await to_thread.run_sync(_reading, read, limiter=_limit_of_loop(MAX_READS_AT_ONCE))


def _limit_of_loop(threads: int) -> CapacityLimiter:
    limits = _limits.get(None)
    if limits is None:
        limits = {each: CapacityLimiter(each) for each in (MAX_READS_AT_ONCE, MAX_PREVIEWS_AT_ONCE)}
        _limits.set(limits)
    return limits[threads]


def _reading(read: Callable[[], Answer]) -> Answer:
    """
    Return the result of a read of the storage.

    :raises EnvironmentNotReadyError: if the storage refuses this server.
    :raises RequestLimitError: if other reads hold large files for too long.
    """
    try:
        with bounded_decoding(), one_large_at_a_time(LONGEST_WAIT_SECONDS):
            return read()
    except StorageError as error:
        if is_refused(error):
            raise EnvironmentNotReadyError(f"{error} Correct this, or {SERVE_ELSEWHERE}") from error
        raise


def _unusable(pointer: str, found: str, option: str) -> EnvironmentNotReadyError:
    return EnvironmentNotReadyError(
        f"Expected the storage of {redact(pointer)} to be usable from this server, found {found}; correct {option}, or "
        f"{SERVE_ELSEWHERE}"
    )


MAX_KEYS = 1_000
"""Maximum number of keys of a batch."""
MAX_TEXT = 16_384
"""Maximum number of characters of the key, the namespace and the user key of a single query."""
MAX_ANSWER_BYTES = 8 << 20
"""Maximum size of an answer."""
MAX_VALUE_BYTES = 64 << 20
"""
Maximum size in memory of the values of an answer.

A value with more than eight times as many bytes in memory as in JSON has mostly null fields or expired elements.
"""
_MAX_CALLERS = 10_000


class RequestRate:
    """
    Limit of the requests of each caller in a process: a token bucket that holds the requests of one second.

    :param per_second: Returns the maximum number of requests per second and caller; 0 for any number.
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
                f"Expected at most {rate:g} requests per second of this caller, found more; send the next one after "
                "the time in the header Retry-After, or ask for several keys at once.",
                retry_after_seconds=(1 - left) / rate,
            )


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
            f"Expected a key, a namespace and a user key of at most {MAX_TEXT} characters together, found {length}; "
            "send them in the body of a POST request."
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
                f"Expected an answer of at most {MAX_ANSWER_BYTES} bytes, found a larger one; ask for fewer keys at "
                "once, or for one entry of a map with user_key, or read the state with read_state."
            )
    return bytes(text)


def retry_after(error: RequestLimitError) -> dict[str, str]:
    """Return the header that says when the request is accepted, if ever."""
    seconds = error.retry_after_seconds
    return {} if seconds is None else {"Retry-After": str(math.ceil(seconds))}


async def check_state_access(request: Request) -> JobGrant:
    """
    Return the permission of the sender to read the state of the job in the path now; raises as ``check_job_access``.

    :raises RequestLimitError: as :meth:`RequestRate.admit`.
    """
    grant = await check_job_access(request)
    request.app.state.admit(grant.caller)
    return grant


StateGrantDep = Annotated[JobGrant, Depends(Checked(check_state_access))]
