"""
Stand-alone server of queryable state, which reads the storage and asks the api-server.

It opens no database and has no credentials for the api-server. Each request is preceded by a check of the version of
its job with the token of the caller, which also authorizes the caller.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import httpx
import uvicorn
from fastapi import FastAPI, Request

from airflow_provider_statecheck.api import content_routes, state_routes
from airflow_provider_statecheck.api.app import Health, healthy
from airflow_provider_statecheck.api.checked_rows import CheckedRows, JobGrant, bearer_token
from airflow_provider_statecheck.api.requests import checked_app
from airflow_provider_statecheck.api.state_reads import ProxyReads, RequestRate, storage_here
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.records import RowsVersion
from airflow_provider_statecheck.checkpoint.store import JobView, LatestCheckpoints
from airflow_provider_statecheck.exceptions import CommitStateUnknownError
from airflow_provider_statecheck.gateway.http import AsyncJobReader
from airflow_provider_statecheck.gateway.verbs import MOUNT_PATH, VERSION_PATH
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.queryable.job_contents import JobContents
from airflow_provider_statecheck.queryable.locations import OpenStorage
from airflow_provider_statecheck.queryable.oracle import CheckpointLocationOracle
from airflow_provider_statecheck.queryable.proxy import KvStateServer, StateProxy

API_TIMEOUT_SECONDS = 5.0
"""Timeout of a call of the api-server, after which a request fails with status 503."""
SHUTDOWN_SECONDS = 10
"""Time to finish running requests after SIGTERM."""

Value = TypeVar("Value")
OpenClient = Callable[[], httpx.AsyncClient]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateServerSettings:
    """Settings of a stand-alone server."""

    api_url: str
    """Root URL of the api-server."""
    max_staleness_seconds: float = 0.0
    """Age of a version check up to which a request makes no new one."""
    requests_per_second: float = 0.0
    """Maximum rate of the requests with a token; 0 for any rate."""


ReaderWith = Callable[[str], AsyncJobReader]
"""Returns a reader at the api-server with the token of a caller."""


_token_of_caller: ContextVar[str] = ContextVar("token_of_caller")
"""Token of the request that the current task, or the thread that it waits for, works on."""


class ForwardedAccess:
    """
    Access of callers that the api-server authorizes.

    :param rows: Rows that are checked with the tokens of callers.
    :param rate: Limit of the requests with each token; a request above it costs no call of the api-server.
    """

    def __init__(self, rows: CheckedRows, rate: RequestRate) -> None:
        self._rows = rows
        self._rate = rate

    async def require(self, request: Request, job_id: JobId) -> JobGrant:
        """
        Check the version of the job with the token of the sender; raises as ``JobAccess.require``.

        :raises RequestLimitError: as ``RequestRate.admit``.
        """
        token = await bearer_token(request)
        caller = hashlib.sha256(token.encode()).hexdigest()
        self._rate.admit(caller)
        await self._rows.check(job_id, token)
        _token_of_caller.set(token)
        return JobGrant(caller=caller)


class ForwardedRows:
    """
    Rows of jobs at the api-server, for threads that work on a request.

    :param reader_with: Opens a reader at the api-server.
    """

    def __init__(self, reader_with: ReaderWith, loop: asyncio.AbstractEventLoop) -> None:
        self._reader_with = reader_with
        self._loop = loop

    def latest_checkpoints(self, job_id: JobId, known_version: RowsVersion | None = None) -> LatestCheckpoints | None:
        """Return the newest checkpoints of a job, or ``None`` if the version is the known one."""
        return self._wait_for(_latest(self._reader_with, job_id, _token_of_caller.get(), known_version))

    def describe(self, job_id: JobId) -> JobView:
        """Return a job with its newest checkpoints."""
        return self._wait_for(self._reader_with(_token_of_caller.get()).describe(job_id))

    def _wait_for(self, call: Coroutine[Any, Any, Value]) -> Value:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()


def load_libraries() -> None:
    """Import the libraries of a read, for which the first request would otherwise wait for seconds."""
    pa.array([0])  # imports pandas, if it is installed


async def health() -> Health:
    """Reply as soon as the server accepts requests; the reply does not depend on the api-server or the storage."""
    return healthy()


def create_state_app(settings: StateServerSettings, open_client: OpenClient, open_storage: OpenStorage) -> FastAPI:
    """
    Create the app, with the same paths as on the api-server.

    :param open_client: Opens the client for calls of the api-server; runs outside of the event loop.
    """
    app = checked_app()
    app.add_api_route(f"{VERSION_PATH}/health", health)
    for router in (state_routes.router, content_routes.router):
        app.include_router(router, prefix=VERSION_PATH)

    @asynccontextmanager
    async def connected(_: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(load_libraries)
        async with await asyncio.to_thread(open_client) as client:
            _connect(app, lambda token: AsyncJobReader(settings.api_url, token, client), settings, open_storage)
            yield

    root = FastAPI(openapi_url=None, lifespan=connected)
    root.mount(MOUNT_PATH, app)
    return root


async def _latest(
    reader_with: ReaderWith, job_id: JobId, token: str, known_version: RowsVersion | None
) -> LatestCheckpoints | None:
    reader = reader_with(token)
    try:
        return await reader.latest_checkpoints(job_id, known_version)
    except CommitStateUnknownError:
        # An api-server that was replaced has closed the idle connections of this client.
        return await reader.latest_checkpoints(job_id, known_version)


async def _is_checked(_: JobId) -> None:
    """Do nothing: the permission of a request was checked with the version of its job."""


def _admitted(_: str) -> None:
    """Do nothing: the request was counted before its permission was checked."""


def _connect(app: FastAPI, reader_with: ReaderWith, settings: StateServerSettings, open_storage: OpenStorage) -> None:
    forwarded = ForwardedRows(reader_with, asyncio.get_running_loop())
    rows = CheckedRows(forwarded, partial(_latest, reader_with), max_staleness_seconds=settings.max_staleness_seconds)
    opened = storage_here(open_storage, "the option --storage-conn-id of serve-state")
    proxy = StateProxy(KvStateServer(opened), partial(CheckpointLocationOracle, rows=rows, open_storage=opened))
    contents = JobContents(rows, opened)
    app.state.job_access = ForwardedAccess(rows, RequestRate(lambda: settings.requests_per_second))
    app.state.admit = _admitted
    app.state.state_reads = ProxyReads(lambda: proxy, _is_checked)
    app.state.job_contents = lambda: contents


def run_server(app: FastAPI, host: str, port: int, announce: Callable[[str], None]) -> None:
    """
    Serve an app until SIGTERM or SIGINT, and then finish the running requests.

    :param announce: Receives the URL of the server as soon as it accepts requests.
    """
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        access_log=False,  # the URLs of requests contain keys
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    _AnnouncedServer(config, announce).run()


class _AnnouncedServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, announce: Callable[[str], None]) -> None:
        super().__init__(config)
        self._announce = announce

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self._announce(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
