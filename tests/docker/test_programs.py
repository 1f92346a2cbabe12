"""The programs of the containers, which run as plain processes too."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.docker.description import DOCKER

_AIRFLOW = '#!/bin/sh\necho "airflow $*" >>"$CALLS"\n'


@pytest.fixture
def called(tmp_path: Path) -> Path:
    """The file in which an ``airflow`` that does nothing else writes down how it was called."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "airflow").write_text(_AIRFLOW)
    (tmp_path / "bin" / "airflow").chmod(0o755)
    return tmp_path / "calls"


def run(program: str, *arguments: str, called: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(called.parent / "bin"), os.environ["PATH"]))
    return subprocess.run(
        [sys.executable, str(DOCKER / program), *arguments],
        cwd=called.parent,
        env={**os.environ, "PATH": path, "CALLS": str(called), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


class TestHealthy:
    @pytest.fixture
    def answering(self) -> Iterator[Callable[..., str]]:
        servers: list[ThreadingHTTPServer] = []

        def answer(content: object, status: int = 200) -> str:
            text = content if isinstance(content, str) else json.dumps(content)

            class Handler(BaseHTTPRequestHandler):
                def do_GET(self) -> None:
                    self.send_response(status)
                    self.end_headers()
                    self.wfile.write(text.encode())

                def log_message(self, *_: object) -> None:
                    pass

            servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
            threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
            return f"http://127.0.0.1:{servers[-1].server_port}/health"

        yield answer
        for server in servers:
            server.shutdown()
            server.server_close()

    @staticmethod
    def _ask(*arguments: str, **environment: str) -> tuple[int, str]:
        command = [sys.executable, str(DOCKER / "healthy.py"), *arguments]
        environ = {**os.environ, **environment}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
        assert done.stderr == "", "what is wrong is one line, no traceback"
        return done.returncode, done.stdout

    @pytest.mark.parametrize(
        ("content", "wanted"),
        [
            ({}, []),
            ({"status": "ok"}, ["status=ok"]),
            ({"scheduler": {"status": "healthy"}}, ["scheduler.status=healthy"]),
            ({"masterwebuiurl": "http://master"}, ["masterwebuiurl"]),
        ],
        ids=["any", "value", "parts", "something"],
    )
    def test_an_answer_with_what_is_wanted_is_health(self, answering, content, wanted):
        assert self._ask(answering(content), *wanted) == (0, "")

    @pytest.mark.parametrize(
        ("content", "wanted"),
        [
            ({"status": "starting"}, "status=ok"),
            ({"scheduler": {"status": None}}, "scheduler.status=healthy"),
            ({"scheduler": None}, "scheduler.status=healthy"),
            ({"masterwebuiurl": ""}, "masterwebuiurl"),
            ([1], "status"),
        ],
        ids=["other value", "none", "no parts", "empty", "list"],
    )
    def test_another_answer_is_told_with_what_was_wanted(self, answering, content, wanted):
        url = answering(content)

        assert self._ask(url, wanted) == (1, f"{url}: expected {wanted}, found {json.dumps(content)}\n")

    def test_an_answer_that_is_no_json_is_no_health(self, answering):
        status, said = self._ask(answering("<html>"))

        assert status == 1
        assert "Expecting value" in said

    def test_an_error_is_no_health_whatever_it_says(self, answering):
        status, said = self._ask(answering({"status": "ok"}, status=503), "status=ok")

        assert status == 1
        assert "503" in said

    def test_silence_is_no_health(self):
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            status, said = self._ask(f"http://127.0.0.1:{closed.getsockname()[1]}/")

        assert status == 1
        assert "refused" in said

    def test_what_does_not_speak_http_is_no_health(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            threading.Thread(target=_babble, args=(server,), daemon=True).start()
            status, said = self._ask(f"http://127.0.0.1:{server.getsockname()[1]}/")

        assert status == 1
        assert "220 smtp" in said

    def test_a_proxy_for_other_hosts_is_not_asked(self, answering):
        """Docker gives every container the proxy of its own configuration."""
        url = answering({"status": "ok"})

        assert self._ask(url, "status=ok", http_proxy="http://127.0.0.1:9", no_proxy="") == (0, "")


class TestServe:
    @pytest.fixture
    def serve(self, tmp_path, called) -> Callable[[], subprocess.CompletedProcess[str]]:
        (tmp_path / "secret").write_text("pass'word\n")
        return lambda: run(
            "serve.py",
            called=called,
            AIRFLOW_USER="ann",
            AIRFLOW_PASSWORD_FILE=str(tmp_path / "secret"),
            AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE=str(tmp_path / "home" / "passwords.json"),
        )

    def test_airflow_is_given_the_password_in_a_file_that_others_cannot_read(self, serve, tmp_path):
        assert serve().returncode == 0

        passwords = tmp_path / "home" / "passwords.json"
        assert json.loads(passwords.read_text()) == {"ann": "pass'word"}
        assert stat.S_IMODE(passwords.stat().st_mode) == 0o600

    def test_it_becomes_the_api_server(self, serve, called):
        serve()

        assert called.read_text() == "airflow api-server\n"

    def test_a_password_that_was_changed_comes_before_the_one_of_the_last_start(self, serve, tmp_path):
        serve()
        (tmp_path / "secret").write_text("another")

        serve()

        assert json.loads((tmp_path / "home" / "passwords.json").read_text()) == {"ann": "another"}


class TestPrepare:
    @pytest.fixture
    def prepare(self, tmp_path, called, object_store) -> Callable[[], subprocess.CompletedProcess[str]]:
        (tmp_path / "scripts").mkdir()
        (tmp_path / "scripts" / "example_data.py").write_text(
            "import os, pathlib, sys\n"
            "pathlib.Path(sys.argv[1]).mkdir(exist_ok=True)\n"
            "print('data', sys.argv[1], file=open(os.environ['CALLS'], 'a'))\n"
        )
        options, bucket = object_store.storage_options, f"made-at-the-start-{uuid.uuid4().hex[:8]}"
        return lambda: run(
            "prepare.py",
            called=called,
            STORE_BUCKET=bucket,
            AWS_ENDPOINT_URL_S3=object_store.endpoint_url,
            AWS_ACCESS_KEY_ID=options["key"],
            AWS_SECRET_ACCESS_KEY=options["secret"],
            AWS_DEFAULT_REGION="us-east-1",
        )

    def test_the_second_time_it_migrates_and_leaves_the_rest_as_it_is(self, prepare, called):
        first = prepare()
        assert first.returncode == 0, first.stderr
        assert "Created bucket made-at-the-start-" in first.stdout
        assert called.read_text().splitlines() == [
            "airflow db migrate",
            "data data",
            "airflow dags reserialize",
            "airflow dags unpause --yes statecheck_maintenance",
        ]
        called.unlink()

        second = prepare()

        assert (second.returncode, second.stdout) == (0, "")
        assert called.read_text() == "airflow db migrate\n"

    def test_what_fails_ends_it_and_is_done_again(self, prepare, called):
        airflow = called.parent / "bin" / "airflow"
        airflow.write_text(f'{_AIRFLOW}test "$2" != reserialize\n')
        assert prepare().returncode != 0
        airflow.write_text(_AIRFLOW)

        assert prepare().returncode == 0

        assert called.read_text().count("data data") == 2


def _babble(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(b"220 smtp\r\n")
