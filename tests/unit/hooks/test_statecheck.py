"""The hook of a connection, over the real API in another process and over servers that are not what they should be."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from airflow.models.connection import Connection
from airflow.providers_manager import ProvidersManager

from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, InvalidConfigurationError
from airflow_provider_statecheck.hooks.connection import coordinator_address
from airflow_provider_statecheck.hooks.statecheck import StatecheckHook
from tests.unit.worker import ServedJobs

# Airflow's own connection form asks for hooks in a way that Airflow deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:ProvidersManager.hooks is deprecated")

Answers = Mapping[str, tuple[int, Any]]

HEALTH, VERSION, LOGIN = "/statecheck/v1/health", "/api/v2/version", "/auth/token"
PAGE = "<!doctype html><title>a page for any path</title>"


@contextmanager
def answering(answers: Answers, otherwise: tuple[int, Any]) -> Iterator[str]:
    """Serve some paths, and one answer for all others; return the root."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, content = answers.get(self.path, otherwise)
            body = (content if isinstance(content, str) else json.dumps(content)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


OURS = {HEALTH: (200, {"status": "ok", "version": "0.1.0"})}
AIRFLOW = {VERSION: (200, {"version": "3.3.2"})}
PASSWORD = "a password that is long enough"


@pytest.fixture
def tested(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[bool, str]]:
    """Test a connection as the form's button does: by an id that stands for what was typed into it."""

    def test(url: str, **fields: Any) -> tuple[bool, str]:
        connection = Connection(conn_id="typed", conn_type="statecheck", host=url, **fields)
        monkeypatch.setenv("AIRFLOW_CONN_TYPED", connection.get_uri())
        result: tuple[bool, str] = connection.test_connection()
        return result

    return test


def test_a_coordinator_is_reached_and_named(served: ServedJobs, tested) -> None:
    is_reached, text = tested(served.url)
    assert is_reached, text
    assert served.url in text
    assert "version 0.1.0" in text


@pytest.mark.parametrize("slash", ["", "/"])
def test_the_path_of_the_base_url_is_part_of_the_url(tested, slash: str) -> None:
    with answering({f"/airflow{path}": answer for path, answer in OURS.items()}, (404, "none")) as url:
        assert tested(f"{url}/airflow{slash}")[0]
        assert not tested(url)[0]


def test_a_user_that_airflow_knows_is_logged_in(tested) -> None:
    with answering(OURS | {LOGIN: (201, {"access_token": "t"})}, (404, "none")) as url:
        is_reached, text = tested(url, login="user", password=PASSWORD)
    assert is_reached, text
    assert "'user'" in text


@pytest.mark.parametrize(
    ("url", "extra", "told"),
    [
        ("http://127.0.0.1:9", {}, "found no server"),
        *((url, {}, "Expected a URL") for url in ("htp://127.0.0.1", "http://127.0.0.1:many")),
        *(
            ("http://127.0.0.1:9", {"timeout": timeout}, "Expected the timeout of connection")
            for timeout in ("soon", "nan", "inf", -1)
        ),
    ],
    ids=str,
)
def test_a_connection_without_a_server_is_told(tested, url: str, extra: dict[str, Any], told: str) -> None:
    is_reached, text = tested(url, extra=json.dumps(extra))
    assert (is_reached, told in text) == (False, True), text


@pytest.mark.parametrize(
    ("answers", "otherwise", "told"),
    [
        ({}, (404, "none"), "found another server"),
        ({}, (200, PAGE), "found another server"),
        ({}, (200, {"status": "ok"}), "found another server"),
        (AIRFLOW, (200, PAGE), "found Airflow 3.3.2 without it"),
        (OURS | {LOGIN: (401, {"detail": "Invalid credentials"})}, (404, "none"), "correct the login or the password"),
    ],
    ids=["404", "page", "json", "Airflow without the provider", "wrong login"],
)
def test_a_server_that_is_not_the_coordinator_or_knows_no_such_user_is_told_without_what_it_says(
    tested, answers: Answers, otherwise: tuple[int, Any], told: str
) -> None:
    with answering(answers, otherwise) as url:
        is_reached, text = tested(url, login="user", password=PASSWORD)
    assert (is_reached, told in text) == (False, True), text
    assert "page" not in text
    assert PASSWORD not in text


def test_missing_tables_are_told(served: ServedJobs, tested) -> None:
    served.drop_tables()
    is_reached, text = tested(served.url)
    assert not is_reached
    assert "run 'airflow db migrate'" in text


def test_the_connection_is_tested_over_http_where_the_database_is_open(tested, monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "sqlite:///airflow.db")
    assert not tested("http://127.0.0.1:9")[0]


def test_airflow_finds_the_hook_by_the_connections_type() -> None:
    hook = ProvidersManager().hooks["statecheck"]
    assert hook is not None
    assert hook.connection_id_attribute_name == "statecheck_conn_id"
    assert (hook.hook_name, hook.connection_testable) == (StatecheckHook.hook_name, True)


def test_a_hook_reads_by_way_of_its_connection(in_worker: ServedJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    in_worker.complete()
    monkeypatch.setenv("AIRFLOW_CONN_ELSEWHERE", json.dumps({"conn_type": "statecheck", "host": in_worker.url}))
    monkeypatch.setenv("AIRFLOW_CONN_STATECHECK_DEFAULT", '{"conn_type": "statecheck", "host": "http://127.0.0.1:9"}')
    hook = StatecheckHook("elsewhere")
    assert [job.name for job in hook.jobs()] == ["sales"]
    assert hook.restore_pointer("sales", "aggregate").endswith("/chk-1")
    assert [c.checkpoint_id for c in hook.checkpoints("sales", "aggregate", before=2, limit=5)] == [1]
    assert hook.checkpoints("sales", before=1) == ()
    with pytest.raises(CheckpointNotFoundError):
        hook.checkpoints("nowhere")


def test_only_the_default_connection_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__STATECHECK__API_URL", "http://api:1234/")
    assert coordinator_address().url == "http://api:1234"
    with pytest.raises(InvalidConfigurationError, match="'elsewhere'"):
        coordinator_address("elsewhere")
