"""Reads of queryable state in an event loop, with one version check for concurrent requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar
from fastapi.concurrency import run_in_threadpool

from airflow_provider_statecheck.api.caller_checks import SharedCalls
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.observer import Change, JobRemoval
from airflow_provider_statecheck.checkpoint.records import JobRecord, RowsVersion
from airflow_provider_statecheck.checkpoint.store import JobView, LatestCheckpoints
from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError, StorageError
from airflow_provider_statecheck.queryable.locations import OpenStorage
from airflow_provider_statecheck.queryable.oracle import LatestRows
from airflow_provider_statecheck.queryable.proxy import KvStateClientProxy, StateProxy
from airflow_provider_statecheck.queryable.queries import AsOf, QueryableName, StateQuery, StateReply
from airflow_provider_statecheck.state.lru_cache import LruCache
from airflow_provider_statecheck.state.waiting import WouldWaitError, about_to_wait, without_waiting
from airflow_provider_statecheck.storage.failures import is_refused
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import redact

Answer = TypeVar("Answer")

MAX_READS_AT_ONCE = 8
"""Maximum number of threads of an event loop that read the storage."""
_MAX_JOBS = 1_000
_limits: RunVar[CapacityLimiter | None] = RunVar("_limits", None)
"""Limit of the threads of each event loop."""


class ProxyReads:
    """
    Reads through a proxy, of single keys that are cached in the event loop, and all others in threads.

    :param proxy: Returns the proxy.
    :param check: Checks the version of a job before a read.
    """

    def __init__(self, proxy: Callable[[], StateProxy], check: Callable[[JobId], Awaitable[None]]) -> None:
        self._proxy = proxy
        self._check = check

    async def get(self, query: StateQuery, answer: Callable[[StateReply], Answer], *, is_short: bool = False) -> Answer:
        """
        Return the answer to a query; raises as ``StateProxy.get``.

        :param answer: Makes the answer from the reply.
        :param is_short: Whether the answer takes microseconds if all that it needs is cached. It is then made in the event
            loop, otherwise in a thread.
        """
        proxy = self._proxy()
        await self._check(query.job_id)
        if is_short and query.as_of.is_latest:
            with suppress(WouldWaitError), without_waiting():
                return answer(proxy.get(query))
        return await read_in_thread(lambda: answer(proxy.get(query)))

    async def names(self, job_id: JobId, as_of: AsOf) -> tuple[QueryableName, ...]:
        """Return the queryable states of a job, first the served and then the refused ones; raises as ``StateProxy.names``."""
        proxy = self._proxy()
        await self._check(job_id)
        return await read_in_thread(lambda: proxy.names(job_id, as_of))


class CheckedRows:
    """
    Rows of jobs for requests that have checked the version of their job.

    Concurrent requests share a check: each joins the next one that begins after its arrival.

    :param rows: Rows of the jobs.
    """

    def __init__(self, rows: LatestRows) -> None:
        self._rows = rows
        self._calls = SharedCalls()
        self._known = LruCache[JobId, LatestCheckpoints](_MAX_JOBS, lambda _: 1)

    async def check(self, job_id: JobId) -> None:
        """
        Read the newest checkpoints of a job if its version has changed.

        :raises CheckpointNotFoundError: if the job does not exist.
        :raises CoordinatorUnavailableError: if the rows cannot be read.
        """
        await self._calls.join(job_id, partial(run_in_threadpool, self._read, job_id))

    def latest_checkpoints(self, job_id: JobId, known_version: RowsVersion | None = None) -> LatestCheckpoints | None:
        """
        Return the newest checkpoints of a job, or ``None`` if the version is the known one.

        With a known version they are those of the last check, otherwise they are read again.
        """
        checked = None if known_version is None else self._known.get(job_id)
        if checked is None:
            about_to_wait()
            return self._rows.latest_checkpoints(job_id, known_version)
        return None if checked.job.rows_version == known_version else checked

    def describe(self, job_id: JobId) -> JobView:
        """Return a job with its newest checkpoints."""
        return self._rows.describe(job_id)

    def forget(self, job_id: JobId) -> None:
        """Let the next check of a job read its newest checkpoints, which have changed."""
        self._known.remove(job_id)

    def _read(self, job_id: JobId) -> None:
        known = self._known.get(job_id)
        found = self._rows.latest_checkpoints(job_id, None if known is None else known.job.rows_version)
        if found is not None:
            self._known.put(job_id, found)


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
    "run 'airflow statecheck serve-state' on a machine that can read the checkpoint storage, and send requests for state to "
    "that server."
)


def storage_here(open_storage: OpenStorage, option: str) -> OpenStorage:
    """
    Return a function that opens storage, with an error that says what to do if this server cannot use it.

    :param open_storage: Opens the storage of a checkpoint.
    :param option: Option of this server that names the connection with the credentials of the storage.
    """

    def opened(pointer: str) -> CheckpointStorage:
        try:
            storage = open_storage(pointer)
        except Exception as error:
            raise _unusable(pointer, str(error), option) from error
        directory = pointer.rpartition("/")[0]
        if storage.is_local and not Path(storage.locate(directory)[1]).is_dir():
            raise _unusable(pointer, "that this machine has no such directory", option)
        return storage

    return opened


async def read_in_thread(read: Callable[[], Answer]) -> Answer:
    """
    Return the result of a read of the storage, which a thread makes.

    The reads have threads of their own, so a slow storage does not stop the other routes of a server. Version checks use
    the threads of those routes, which wait for the same database.

    :raises EnvironmentNotReadyError: if the storage refuses this server.
    """
    return await to_thread.run_sync(_reading, read, limiter=_limit_of_loop())


def _limit_of_loop() -> CapacityLimiter:
    limit = _limits.get(None)
    if limit is None:
        limit = CapacityLimiter(MAX_READS_AT_ONCE)
        _limits.set(limit)
    return limit


def _reading(read: Callable[[], Answer]) -> Answer:
    """
    Return the result of a read of the storage.

    :raises EnvironmentNotReadyError: if the storage refuses this server.
    """
    try:
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
