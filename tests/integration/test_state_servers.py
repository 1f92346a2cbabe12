"""Servers of queryable state in processes: the contract, and what happens if one of the processes dies."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import dropwhile, permutations, takewhile
from pathlib import Path
from queue import Queue
from subprocess import PIPE, Popen
from threading import Event
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import pytest

from airflow_provider_statecheck.exceptions import (
    AccessDeniedError,
    CheckpointNotFoundError,
    CoordinatorUnavailableError,
)
from airflow_provider_statecheck.gateway.http import HttpClient, headers_for, url_of
from airflow_provider_statecheck.gateway.verbs import encode_error
from airflow_provider_statecheck.queryable.client import QueryableStateClient
from airflow_provider_statecheck.queryable.queries import StateQuery
from airflow_provider_statecheck.storage.failures import RetryPolicy
from tests.conformance.served import ApiProcess, ClaimedTask
from tests.conformance.test_queryable_state import Client, OverHttp
from tests.contracts.queried_stage import QueriedStage
from tests.contracts.queryable_state_contract import MakeStage, QueryableStateContract
from tests.messages import ManualClock
from tests.state_servers import StateServer, StateServerProcess

ONCE = RetryPolicy(attempts=1)


@pytest.fixture(scope="module")
def api() -> Iterator[ApiProcess]:
    process = ApiProcess()
    yield process
    process.close()


@pytest.fixture(scope="module")
def state_processes() -> Iterator[StateServerProcess]:
    process = StateServerProcess()
    yield process
    process.close()


class StandAlone(OverHttp):
    """A server of its own serves state, and asks the api-server."""

    @pytest.fixture
    def reader(self, state_processes: StateServerProcess, api_url: str, token: str) -> Iterator[Client]:
        with state_processes.running(api_url) as (server,), QueryableStateClient(server.url, token) as client:
            yield Client(client)


@pytest.mark.soak
class TestContract(StandAlone, QueryableStateContract):
    """The contract, which the api-server also passes with the same routes."""


class TestStandAlone(StandAlone):
    """What the processes have to do with each other."""

    def test_clients_go_on_while_servers_are_killed(
        self, state_processes: StateServerProcess, api_url: str, token: str, stage: QueriedStage
    ) -> None:
        stage.put("balance", {"ann": 1})
        stage.checkpoint()
        with (
            state_processes.running(api_url, count=3) as servers,
            reading(servers, token, self.query("balances", "ann")) as answers,
        ):
            for server in servers[:2]:
                assert {answers.get(timeout=30) for _ in range(30)} == {1}
                server.kill()
            stage.put("balance", {"ann": 2})
            stage.checkpoint()
            # Each client had at most one request under way when the checkpoint was completed.
            found = [answers.get(timeout=30) for _ in range(answers.qsize() + 30)]

        assert found[-20:] == [2] * 20

    def test_newer_checkpoint_is_served_after_the_api_server_was_replaced(
        self, api: ApiProcess, stage: QueriedStage, reader: Client, tmp_path: Path
    ) -> None:
        for number in range(1, 5):
            stage.put("balance", {"ann": number})
            stage.checkpoint()
            assert self.read(reader, "balances", "ann") == number
            api.serve(tmp_path)
            assert self.read(reader, "balances", "ann") == number

    @pytest.mark.soak
    def test_without_the_api_only_a_server_that_may_be_stale_answers(
        self, state_processes: StateServerProcess, engine: Any, clock: ManualClock, stage: QueriedStage, tmp_path: Path
    ) -> None:
        stage.put("balance", {"ann": 1})
        stage.checkpoint()
        with (
            running_api(tmp_path) as api,
            state_processes.running(api.url) as strict,
            state_processes.running(api.url, max_staleness_seconds=3600.0) as stale,
        ):
            token = ClaimedTask(HttpClient(api.url)).obtain()
            readers = [Client(QueryableStateClient(s.url, token, retries=ONCE)) for s in (*strict, *stale)]
            assert [self.read(reader, "balances", "ann") for reader in readers] == [1, 1]
            api.close()
            with pytest.raises(CoordinatorUnavailableError):
                self.read(readers[0], "balances", "ann")
            assert self.read(readers[1], "balances", "ann") == 1

            stage.put("balance", {"ann": 2})
            stage.checkpoint()
            with running_api(tmp_path, port=api.port):
                assert self.read(readers[0], "balances", "ann") == 2

    @pytest.mark.parametrize("max_staleness_seconds", [0.0, 3600.0])
    def test_authorized_caller_authorizes_no_other(
        self,
        state_processes: StateServerProcess,
        api_url: str,
        token: str,
        make_stage: MakeStage,
        max_staleness_seconds: float,
    ) -> None:
        stages = [make_stage(job_name=job_name) for job_name in (self.job_name, "another")]
        for stage in stages:
            stage.put("balance", {"ann": 1})
            stage.checkpoint()
        of_another = HttpClient(api_url).post("token/read", {"job_id": stages[1].job_id}, token)["token"]
        with state_processes.running(api_url, max_staleness_seconds=max_staleness_seconds) as (server,):
            assert self.read(Client(QueryableStateClient(server.url, token)), "balances", "ann") == 1
            for other in (of_another, "unknown", None):
                with pytest.raises(AccessDeniedError):
                    self.read(Client(QueryableStateClient(server.url, other)), "balances", "ann")

    def test_rate_of_a_caller_is_limited(
        self, state_processes: StateServerProcess, api_url: str, token: str, stage: QueriedStage
    ) -> None:
        stage.checkpoint()
        with state_processes.running(api_url, requests_per_second=0.001) as (server,):
            url = url_of(server.url, f"jobs/{self.job_id}/state")
            statuses = [httpx.get(url, headers=headers_for(token)).status_code for _ in range(2)]
            assert statuses == [200, 429]

    def test_health_needs_neither_a_token_nor_the_api(self, state_processes: StateServerProcess) -> None:
        with state_processes.running("http://127.0.0.1:1") as (server,):
            assert HttpClient(server.url).get("health")["status"] == "ok"


class HeldApi(ThreadingHTTPServer):
    """An api-server that knows no job, and holds its replies back until a test releases them."""

    def __init__(self) -> None:
        self.asked, self.released = Event(), Event()
        super().__init__(("127.0.0.1", 0), _HeldReply)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _HeldReply(BaseHTTPRequestHandler):
    server: HeldApi

    def do_GET(self) -> None:
        self.server.asked.set()
        self.server.released.wait(timeout=30)
        data = json.dumps(encode_error(CheckpointNotFoundError("There is no such job."))).encode()
        self.send_response(404)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Write nothing to the output of the tests."""


@pytest.fixture
def held_api() -> Iterator[HeldApi]:
    with HeldApi() as api, ThreadPoolExecutor(1) as pool:
        serving = pool.submit(api.serve_forever, poll_interval=0.05)
        yield api
        api.released.set()
        api.shutdown()
        serving.result()


@pytest.mark.airflow
def test_command_serves_without_a_database_and_finishes_its_requests_before_it_ends(
    held_api: HeldApi, tmp_path: Path
) -> None:
    with running_command(held_api.url, tmp_path) as process, ThreadPoolExecutor(1) as pool:
        url = announced_url(process)
        path = f"jobs/{uuid4().hex}/state/name?key=of-ann"
        request = pool.submit(httpx.get, url_of(url, path), headers=headers_for("a-token"))
        assert held_api.asked.wait(timeout=30)
        process.send_signal(signal.SIGTERM)
        wait_until_closed(url)
        held_api.released.set()
        assert request.result().json()["code"] == CheckpointNotFoundError.code
        output, log = process.communicate(timeout=30)

    assert process.returncode == -signal.SIGTERM
    assert not {secret for secret in ("a-token", "of-ann") if secret in output + log}


@contextmanager
def running_command(api_url: str, airflow_home: Path) -> Iterator[Popen[str]]:
    """Run the command of Airflow on a machine without Airflow's database."""
    command = (sys.executable, "-m", "airflow", "statecheck", "serve-state", "-o", "json", "--port", "0")
    environment = os.environ | {
        "AIRFLOW_HOME": str(airflow_home),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "postgresql+psycopg2://nobody:none@127.0.0.1:1/none",
    }
    with Popen((*command, "--api-url", api_url), env=environment, stdout=PIPE, stderr=PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def announced_url(process: Popen[str]) -> str:
    """Return the URL from the row that the command prints, after lines of Airflow's log."""
    assert process.stdout is not None
    row = takewhile(lambda line: line != "]\n", dropwhile(lambda line: line != "[\n", process.stdout))
    return str(json.loads("".join(row) + "]")[0]["url"])


def wait_until_closed(url: str) -> None:
    """Connect until the server refuses, or resets a connection that it did not accept any more."""
    address = urlsplit(url)
    with suppress(ConnectionError):
        while True:
            socket.create_connection((address.hostname, address.port), timeout=30).close()


@contextmanager
def running_api(folder: Path, port: int = 0) -> Iterator[ApiProcess]:
    """Run an api-server that a test may end."""
    api = ApiProcess(port)
    try:
        api.serve(folder)
        yield api
    finally:
        api.close()


@contextmanager
def reading(servers: list[StateServer], token: str, query: StateQuery) -> Iterator[Queue[Any]]:
    """Read a balance with one client for each order of the servers; an error of a client is raised at the end."""
    answers: Queue[Any] = Queue()
    ended = Event()

    def read(urls: list[str]) -> None:
        with QueryableStateClient(urls, token) as client:
            while not ended.is_set():
                answers.put(client.ask(query).values[0])

    orders = [[each.url for each in order] for order in permutations(servers)]
    with ThreadPoolExecutor(len(orders)) as pool:
        clients = [pool.submit(read, order) for order in orders]
        try:
            yield answers
        finally:
            ended.set()
        for client in clients:
            client.result()
