"""
Servers of Q2, each with an empty route and in a process on one core.

``python -m benchmarks.q2_server SETTINGS`` prints the URL. The settings are JSON: ``core``, ``options`` of the storage,
and either ``api_url`` and ``max_staleness_seconds`` of a stand-alone server, or ``database`` of the app of an
api-server.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from typing import Any

import httpx
from fastapi import FastAPI
from sqlalchemy import create_engine
from starlette.routing import Mount

from airflow_provider_statecheck.api.app import create_server_app
from airflow_provider_statecheck.api.services import Services
from airflow_provider_statecheck.api.state_server import StateServerSettings, create_state_app, run_server
from airflow_provider_statecheck.gateway.verbs import VERSION_PATH
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.conformance.api_process import TrustingTasks

EMPTY = f"{VERSION_PATH}/empty"


async def empty() -> None:
    """Reply with nothing, which is the least that a route of FastAPI does."""


def api_server(database: str, options: dict[str, Any]) -> FastAPI:
    """Return the app of an api-server that also serves state."""
    engine = create_engine(database)
    return create_server_app(Services(lambda: engine, TrustingTasks(), open_storage=_opener(options)))


def stand_alone(api_url: str, max_staleness_seconds: float, options: dict[str, Any]) -> FastAPI:
    """Return the app of a stand-alone server."""
    settings = StateServerSettings(api_url=api_url, max_staleness_seconds=max_staleness_seconds)
    return create_state_app(settings, httpx.AsyncClient, _opener(options))


def _opener(options: dict[str, Any]) -> Any:
    return partial(CheckpointStorage.open, **options)


def main() -> None:
    """Serve until the process is killed."""
    settings = json.loads(sys.argv[1])
    os.sched_setaffinity(0, {settings.pop("core")})
    app = stand_alone(**settings) if "api_url" in settings else api_server(**settings)
    for route in app.routes:
        if isinstance(route, Mount) and isinstance(route.app, FastAPI):
            route.app.add_api_route(EMPTY, empty)
    run_server(app, "127.0.0.1", 0, lambda url: print(url, flush=True))


if __name__ == "__main__":
    main()
