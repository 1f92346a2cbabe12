"""
Q2: one key of 5 million over HTTP with 16 clients, compared with an empty route of the same server.

A client sends its next request when the reply has arrived, so both times are those of a busy server. The server has one
core, and the clients share the other one with the api-server that a stand-alone server asks. Object storage is
simulated on the same machine. The first requests of a new server are cold: it has read neither metadata nor indexes nor
blocks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import create_engine

from airflow_provider_statecheck.api.tokens import USER_LIFETIME, TokenKeeper
from airflow_provider_statecheck.checkpoint.records import SystemClock
from airflow_provider_statecheck.gateway.verbs import MOUNT_PATH, VERSION_PATH
from airflow_provider_statecheck.metadata.tables import UserCaller
from airflow_provider_statecheck.metadata.token_store import SqlTokenStore
from benchmarks.measure import Result
from benchmarks.postgres import postgres
from benchmarks.q1_state import NAME, Data, SavedState
from benchmarks.q2_server import EMPTY
from benchmarks.side import ROOT, Side
from benchmarks.sides import ratio_result
from tests.object_store import KEY, SECRET, running_object_store

CLIENTS = 16
GOAL_OF_MEDIAN = 1 / 2
MOST_MILLISECONDS = 10.0
"""Limit of the 99th percentile."""
_COLD_REQUESTS = 100 * CLIENTS
"""Requests of a cold reading; more would mostly find the blocks of earlier ones in memory."""
_FIRST_CORE, _SECOND_CORE = 0, 1


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of keys, readings and requests per reading."""

    keys: int = 5_000_000
    pairs: int = 5
    requests: int = 8_000


@dataclass(frozen=True, slots=True)
class Served:
    """A checkpoint that servers read, and how clients ask for its keys."""

    place: str
    database: str
    options: dict[str, Any]
    token: str
    paths: list[str]
    sizes: dict[str, Any] = field(default_factory=dict)


def run(work: Path, *, quick: bool) -> list[Result]:
    """Measure each kind of server; with a fiftieth of the keys and few requests if ``quick``."""
    sizes = Sizes(keys=100_000, pairs=1, requests=1_600) if quick else Sizes()
    data = Data.of(sizes.keys)
    local, url = (work / "q2").as_uri(), f"sqlite:///{work}/q2.db"
    with Side("benchmarks.q2_load", work / "q2-load.log") as load:
        served = _saved(data, "local files", local, {}, url)
        results = _api_server(load, served, "SQLite", sizes) + _stand_alone(load, served, sizes)
        if not quick:
            with postgres(work) as url:
                served = _saved(data, "local files", f"{local}-postgres", {}, url)
                results += _api_server(load, served, "PostgreSQL", sizes)
            results += _on_s3(load, data, work, sizes)
    return results


def _on_s3(load: Side, data: Data, work: Path, sizes: Sizes) -> list[Result]:
    with running_object_store() as store:
        # Bypasses the proxy of the tests, which is slow.
        options = {"key": KEY, "secret": SECRET, "endpoint_url": store.direct_url}
        served = _saved(data, "S3", f"s3://{store.bucket}/q2", options, f"sqlite:///{work}/q2-s3.db")
        return _api_server(load, served, "SQLite", sizes) + _stand_alone(load, served, sizes)


def _saved(data: Data, place: str, base: str, options: dict[str, Any], database: str) -> Served:
    """Write the checkpoint, and issue a token that reads it."""
    state = SavedState(data, base, options, database)
    engine = create_engine(database)
    tokens, lifetime = TokenKeeper(SqlTokenStore(engine), SystemClock()), USER_LIFETIME.total_seconds()
    token = tokens.issue_user_reader(UserCaller(user="benchmark"), state.job_id, lifetime).token
    engine.dispose()
    keys = np.random.default_rng(0).choice(data.ids, 20_000).tolist()
    path = f"{MOUNT_PATH}{VERSION_PATH}/jobs/{state.job_id}/state/{NAME}"
    sizes = {"keys": len(data.ids), "bytes of state": state.size_bytes, "clients": CLIENTS}
    return Served(place, database, options, token, [f"{path}?key={key}" for key in keys], sizes)


def _api_server(load: Side, served: Served, database: str, sizes: Sizes) -> list[Result]:
    settings = {"database": served.database, "options": served.options}
    return _measured(load, served, f"api-server on {database}", sizes, settings)


def _stand_alone(load: Side, served: Served, sizes: Sizes) -> list[Result]:
    results: list[Result] = []
    # The api-server shares the core of the clients.
    api_settings = {"core": _SECOND_CORE, "database": served.database, "options": served.options}
    with _server(api_settings) as api_url:
        for staleness, name in ((0.0, "a check per request"), (1.0, "a check per second")):
            settings = {"api_url": api_url, "max_staleness_seconds": staleness, "options": served.options}
            results += _measured(load, served, f"stand-alone server, {name}", sizes, settings)
    return results


def _measured(load: Side, served: Served, form: str, sizes: Sizes, settings: dict[str, Any]) -> list[Result]:
    case = f"{served.place}: {form}"
    cold = []
    for _ in range(sizes.pairs):
        with _server({"core": _FIRST_CORE} | settings) as url:
            cold.append(_pair(load, url, served, _COLD_REQUESTS))
    with _server({"core": _FIRST_CORE} | settings) as url:
        warm = [_pair(load, url, served, sizes.requests) for _ in range(sizes.pairs + 1)]
    return [
        *_results(f"{case}, warm", served, warm[1:], GOAL_OF_MEDIAN, 1.0),
        *_results(f"{case}, first {_COLD_REQUESTS} requests", served, cold, None, None),
    ]


def _pair(load: Side, url: str, served: Served, requests: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return the times of requests for keys, and then of the empty route."""
    asked: dict[str, Any] = {"port": int(url.rpartition(":")[2]), "token": served.token, "clients": CLIENTS}
    ours = load.ask(paths=served.paths, requests=requests, **asked)
    peer = load.ask(paths=[f"{MOUNT_PATH}{EMPTY}"], requests=requests, **asked)
    if ours is None or peer is None:
        raise RuntimeError("Expected the times of the requests, found none.")
    return ours, peer


def _results(
    case: str,
    served: Served,
    pairs: list[tuple[dict[str, float], dict[str, float]]],
    median_goal: float | None,
    limit_goal: float | None,
) -> list[Result]:
    medians = [[ours["p50"], peer["p50"]] for ours, peer in pairs]
    slowest = [[ours["p99"], MOST_MILLISECONDS] for ours, _ in pairs]
    sizes = served.sizes | {"requests per second": [round(ours["per second"]) for ours, _ in pairs]}
    return [
        ratio_result("Q2", f"{case}: p50 vs the empty route", medians, median_goal, sizes, unit="ms"),
        ratio_result("Q2", f"{case}: p99 vs the limit", slowest, limit_goal, sizes, unit="ms"),
    ]


@contextmanager
def _server(settings: dict[str, Any]) -> Iterator[str]:
    """Run a server, and return its URL."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.q2_server", json.dumps(settings)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            if not url:
                raise RuntimeError(f"Expected the URL of a server with {settings}, found that the process ended.")
            yield url
        finally:
            process.kill()
