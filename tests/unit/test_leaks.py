"""The searcher finds a planted token in each kind of place, in each form."""

from __future__ import annotations

import base64
import gzip
import http.server
import json
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from sqlalchemy import JSON, Column, Integer, LargeBinary, MetaData, Table, Text, create_engine, insert
from sqlalchemy.engine import Engine

from tests.leaks import AIRFLOW_TABLES, CommandLines, Leak, Place, command_lines, files, find, page, rows

PLANTED = "Vq3-planted_token+with/odd=signs 7Yz"
OTHER = "another-token-that-is-nowhere"


def _found(places: list[Place], secret: str = PLANTED) -> list[str]:
    leaks = find([OTHER, secret], places)
    assert all(leak.secret == 1 for leak in leaks)
    return [leak.form for leak in leaks]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("plain", PLANTED),
        ("plain", f"Authorization: Bearer {PLANTED}\n"),
        ("url", urllib.parse.quote(PLANTED, safe="")),
        ("url", urllib.parse.urlencode({"token": PLANTED})),
        ("base64", base64.b64encode(PLANTED.encode()).decode()),
        ("base64", base64.urlsafe_b64encode(PLANTED.encode()).decode().rstrip("=")),
        ("base64", base64.b64encode(f"a:{PLANTED}".encode()).decode()),
        ("base64", base64.b64encode(json.dumps({"token": PLANTED}).encode()).decode()),
    ],
)
def test_a_token_is_found_in_each_form(form: str, text: str) -> None:
    assert form in _found([Place("here", text.encode())])


@given(st.binary(max_size=9), st.binary(max_size=9), st.text("abcXYZ019-_", min_size=8, max_size=50))
@settings(deadline=None, database=None)
def test_base64_is_found_whatever_stands_beside_the_token(before: bytes, after: bytes, secret: str) -> None:
    encoded = base64.b64encode(before + secret.encode() + after)
    assert "base64" in _found([Place("here", encoded)], secret)


def test_nothing_is_found_where_nothing_is() -> None:
    places = [Place("here", b"Bearer ***"), Place("there", PLANTED[:-1].encode()), Place("nowhere", b"")]
    assert find([PLANTED, OTHER], places) == []


def test_a_leak_names_its_place_and_never_its_secret() -> None:
    leaks = find([OTHER, PLANTED], [Place("the log", PLANTED.encode() * 2)])
    assert leaks == [Leak(secret=1, form="plain", place="the log")]
    assert PLANTED not in repr(leaks)


def test_a_secret_so_short_that_it_is_everywhere_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 8"):
        find(["short"], [])


def test_files_are_searched_at_any_depth_and_unpacked(tmp_path: Path) -> None:
    deep = tmp_path / "dag_id=x" / "run_id=y"
    deep.mkdir(parents=True)
    (deep / "attempt=1.log").write_text(f'{{"event": "{PLANTED}"}}')
    (tmp_path / "old.log.gz").write_bytes(gzip.compress(PLANTED.encode()))
    (tmp_path / "binary").write_bytes(b"\xff\xfe" + PLANTED.encode())
    (tmp_path / "clean.log").write_text("nothing")
    found = {Path(leak.place).name for leak in find([PLANTED], files(tmp_path))}
    assert found == {"attempt=1.log", "old.log.gz", "binary"}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path}/airflow.db")
    yield engine
    engine.dispose()


def test_rows_are_searched_in_every_column_of_every_table(database: Engine) -> None:
    metadata = MetaData()
    values = {"words": PLANTED, "json": {"deep": [PLANTED]}, "raw": PLANTED.encode()}
    kinds = {"words": Text, "json": JSON, "raw": LargeBinary}
    tables = [
        Table(name, metadata, Column("id", Integer, primary_key=True), *[Column(*each) for each in kinds.items()])
        for name in AIRFLOW_TABLES
    ]
    metadata.create_all(database)
    assert find([PLANTED], rows(database)) == []
    with database.begin() as connection:
        for table in tables:
            for column, value in values.items():
                connection.execute(insert(table).values({column: value}))
    found = [leak.place for leak in find([PLANTED], rows(database))]
    assert sorted(found) == sorted(f"row {number} of table {name}" for name in AIRFLOW_TABLES for number in range(3))


def test_a_table_that_is_not_there_is_an_error_and_no_empty_place(database: Engine) -> None:
    with pytest.raises(LookupError, match="xcom"):
        list(rows(database))


@pytest.mark.airflow
def test_the_tables_are_those_of_a_real_airflow(airflow_db: Path) -> None:
    engine = create_engine(f"sqlite:///{airflow_db}/airflow.db")
    try:
        list(rows(engine))
    finally:
        engine.dispose()


@contextmanager
def _process(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is there until the end of the context."""
    command = [sys.executable, "-S", "-c", "import sys; sys.stdout.write('x'); sys.stdout.flush(); sys.stdin.read()"]
    with subprocess.Popen([*command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        yield process
        process.communicate(timeout=60)


def test_a_token_on_a_command_line_is_found() -> None:
    with _process("--conf", f"spark.token={PLANTED}") as process:
        places = [leak.place for leak in find([PLANTED], command_lines())]
    assert f"command line of process {process.pid}" in places


def test_a_command_line_is_remembered_when_its_process_is_gone() -> None:
    with CommandLines(pause_seconds=0.01) as seen, _process(PLANTED) as process:
        _wait_for(seen)
    places = [leak.place for leak in find([PLANTED], seen.places)]
    assert f"command line of process {process.pid}" in places


def _wait_for(seen: CommandLines) -> None:
    moment = threading.Event()
    while not find([PLANTED], seen.places):
        moment.wait(0.01)


def test_a_token_on_a_page_is_found() -> None:
    class Environment(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"<td>spark.executorEnv.TOKEN</td><td>{PLANTED}</td>".encode())

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Environment) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/environment/"
        assert find([PLANTED], page(url)) == [Leak(0, "plain", f"page {url}")]
