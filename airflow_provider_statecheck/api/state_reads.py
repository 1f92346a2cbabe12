"""Reads of queryable state in an event loop, with one version check for concurrent requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar

from airflow_provider_statecheck.api.checked_rows import CheckedRows
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.observer import Change, JobRemoval
from airflow_provider_statecheck.checkpoint.records import JobRecord
from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError, StorageError
from airflow_provider_statecheck.queryable.locations import OpenStorage
from airflow_provider_statecheck.queryable.proxy import KvStateClientProxy, StateProxy
from airflow_provider_statecheck.queryable.queries import AsOf, QueryableName, StateQuery, StateReply
from airflow_provider_statecheck.state.waiting import WouldWaitError, without_waiting
from airflow_provider_statecheck.storage.failures import is_refused
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import redact

Answer = TypeVar("Answer")

MAX_READS_AT_ONCE = 8
"""Maximum number of threads of an event loop that read the storage."""
_limits: RunVar[CapacityLimiter | None] = RunVar("_limits", None)
"""Limit of the threads of each event loop."""


class ProxyReads:
    """
    Reads through a proxy, of single keys that are cached in the event loop, and all others in threads.

    :param proxy: Returns the proxy.
    :param check: Checks the version of a job before a read.
    """

    def __init__(self, proxy: Callable[[], StateProxy], check: Callable[[JobId], Awaitable[object]]) -> None:
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
