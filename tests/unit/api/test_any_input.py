"""No input makes the server fail: whatever is sent, to whichever route, is taken or refused with the field named."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import json
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from sqlalchemy import create_engine

from airflow_provider_statecheck.api import requests
from airflow_provider_statecheck.api.app import create_app
from airflow_provider_statecheck.api.requests import MAX_BODY_BYTES_WITHOUT_TOKEN
from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.gateway.verbs import MAX_BODY_BYTES
from airflow_provider_statecheck.metadata.tables import METADATA
from airflow_provider_statecheck.metadata.unit_of_work import open_engine
from tests.unit.api.server import ROOT, ApiServer, accepted, acknowledgement, description, registration
from tests.unit.api.stage import Stage
from tests.unit.api.test_access import RENEWS, RULES, Route, _name, _request

OF_NO_COLUMN = {
    *("at_least", "newest_on_storage", "checkpoint_ids", "run"),
    *("secret", "ti_id", "dry_run", "is_named", "age_seconds", "idle_seconds", "timeout_seconds"),
    *("lease_seconds", "min_pause_seconds", "max_concurrent", "max_queued", "cleanings", "operators", "uids", "cause"),
    "members",
    *("failure", "reason", "problem", "logical_task", "clear_marker", "savepoint_dir", "increment_seconds"),
    *("label", "airflow", "pointer", "keys", "namespace", "uri", "size"),
    # Figures of a checkpoint are kept as JSON.
    *("kind", "outcome", "type", "rows", "finished", "total", "finished_splits", "total_splits", "size_bytes"),
    *("seconds", "seconds_saved", "remaining_seconds", "snapshot_seconds", "write_seconds", "commit_seconds"),
    *("open_commits", "left_out", "parts", "share", "bad_parts"),
    *("computing", "computing_after", "answered_after", "transport", "rows_per_second", "checkpoint_share"),
}
"""Fields of messages that are looked at and not kept, or kept as a text of any length."""
HOSTILE: tuple[Any, ...] = (
    *(
        "",
        " ",
        "a\x00b",
        "\ud800",
        "x" * 33,
        "x" * 501,
        "x" * 70_000,
        "[",
        "http://[",
        "s3://[::1",
        "file://%zz",
        "../..",
        "9" * 400,
    ),
    *(0, -1, 2**31 - 1, 2**31, -(2**31) - 1, 2**53, 2**63 - 1, 2**63, -(2**63) - 1, 10**400),
    *(0.5, -0.0, 1e300, -1e300, 1e-300, float("inf"), float("-inf"), float("nan")),
    *(None, True, False, [], {}, [None], [[]], {"": ""}, [0] * 1000, {"\x00": 1}, {"\ud800": 1}),
)
ANYTHING = st.sampled_from(HOSTILE) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
BODIES = st.binary(max_size=60) | st.sampled_from(
    [
        b"[" * 400,
        b"[" * 1000 + b"]" * 1000,
        b'{"a":' * 900 + b"1" + b"}" * 900,
        b"\xff\xfe\x00",
        b"\xef\xbb\xbf{}",
        b"NaN",
        b"1" * 9000,
    ]
)
HEADERS = st.sampled_from(
    [
        *(
            {"Content-Type": each}
            for each in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ";;")
        ),
        *({"Content-Type": "application/json", "Content-Encoding": each} for each in ("gzip", "br", "\x7f")),
        {"Content-Type": "application/json; charset=utf-7"},
        {},
    ]
)
PLACES = st.sampled_from(
    ["0" * 33, "9" * 19, "x" * 5000, "%00", "%ed%a0%80", "%ff", "a%2Fb", "..;", "9" * 400, "%F0%9D%84%9E"]
)
ROUTES = sorted(RULES)
MESSAGES = [route for route in ROUTES if route[0] == "POST"]
TRIES = settings(
    max_examples=4,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(
    scope="module",
    params=[pytest.param("sqlite", marks=pytest.mark.soak), pytest.param("postgresql", marks=pytest.mark.db)],
)
def lasting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A stage on each database, for all tests of this file: what one of them leaves is no fault of the next."""
    # SQLite takes longer texts and larger numbers than PostgreSQL, so the shorter run is on PostgreSQL.
    is_sqlite = request.param == "sqlite"
    url = (
        f"sqlite:///{tmp_path_factory.mktemp('any')}/state.db" if is_sqlite else request.getfixturevalue("postgres_url")
    )
    engine = open_engine(url)
    with engine.begin() as connection:
        for table in reversed(METADATA.sorted_tables):
            connection.execute(table.delete())
    with ApiServer(engine) as api:
        yield Stage.begin(api)


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict | list):
        for place in value if isinstance(value, dict) else range(len(value)):
            yield from _leaves(value[place], (*path, place))


def _replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    changed = copy.copy(value)
    changed[path[0]] = _replaced(value[path[0]], path[1:], new)
    return changed


def _send(api: ApiServer, route: Route, path: str, token: str, body: bytes, headers: dict[str, str]) -> Any:
    headers = {"Authorization": f"Bearer {token}"} | headers
    response = api.client.request(route[0], f"{ROOT}{path}", content=body, headers=headers)
    # The checkpoints of the stage have no files, so its state cannot be read.
    is_answered = response.status_code < 500 or (response.status_code == 503 and "/state/" in path)
    assert is_answered, f"{route} {path} {body[:300]!r} {headers}: {response.text}"
    return response


def _fresh(stage: Stage) -> Stage:
    # Some of what was sent before is taken, and may have ended the attempt.
    attempt = stage.api.attempt()
    return Stage(stage.api, attempt, stage.api.trigger(attempt))


@pytest.mark.soak
@pytest.mark.parametrize("route", MESSAGES, ids=_name)
def test_no_value_in_a_field_makes_the_server_fail(lasting: Stage, route: Route) -> None:
    @given(st.data())
    @TRIES
    def is_answered(data: Any) -> None:
        fresh = _fresh(lasting)
        request = _request(fresh, route)
        path = data.draw(st.sampled_from(sorted(_leaves(request.body), key=str)), label="place")
        body = _replaced(request.body, path, data.draw(ANYTHING, label="value"))
        text = json.dumps(body).encode(errors="surrogatepass")
        _send(fresh.api, route, request.path, RULES[route].right(fresh), text, {"Content-Type": "application/json"})

    is_answered()


@pytest.mark.parametrize("route", [route for route in MESSAGES if route not in RENEWS], ids=_name)
def test_no_body_and_no_header_makes_the_server_fail(stage: Stage, route: Route) -> None:
    token = RULES[route].right(stage)

    @given(BODIES, HEADERS | st.just({"Content-Type": "application/json"}))
    @TRIES
    def is_answered(body: bytes, headers: dict[str, str]) -> None:
        assert _send(stage.api, route, route[1], token, body, headers).status_code >= 400

    is_answered()


@pytest.mark.soak
@pytest.mark.parametrize("route", [route for route in ROUTES if "{" in route[1]], ids=_name)
def test_no_place_in_a_path_makes_the_server_fail(lasting: Stage, route: Route) -> None:
    @given(PLACES, PLACES)
    @TRIES
    def is_answered(job: str, operator: str) -> None:
        path = route[1].format(job_id=job, operator_id=operator, checkpoint_id=operator, name=operator)
        _send(lasting.api, route, path, lasting.task_token(), b"", {})

    is_answered()


@pytest.mark.parametrize("name", ["before", "limit", "operator_id", "status", "unknown"])
@pytest.mark.parametrize(
    "value", ["", "x", "%00", "-1", "0", "2147483648", "9223372036854775808", "9" * 5000, "x" * 600]
)
def test_no_value_in_a_query_makes_the_server_fail(lasting: Stage, name: str, value: str) -> None:
    path = f"/v1/jobs/{lasting.attempt.job_id}/checkpoints?{name}={value}"
    _send(lasting.api, ("GET", ""), path, lasting.task_token(), b"", {})


@pytest.mark.parametrize("route", [("POST", "/v1/token"), *MESSAGES], ids=_name)
@pytest.mark.parametrize("depth", [400, 990, 5000])
def test_nested_lists_are_refused_before_and_after_the_token(stage: Stage, route: Route, depth: int) -> None:
    body = b"[" * depth + b"]" * depth
    json_header = {"Content-Type": "application/json"}
    for token in ("unknown", stage.attempt.token):
        assert _send(stage.api, route, route[1], token, body, json_header).status_code in (400, 401, 403, 404, 422)


@pytest.mark.parametrize(
    ("verb", "change", "named"),
    [
        ("register", {"attempt_key": "x" * 33}, "attempt_key to be text of at most 32"),
        ("register", {"uid": "x" * 501}, "uid to be text of at most 500"),
        ("register", {"job_name": "x" * 501}, "job_name to be text of at most 500"),
        ("register", {"num_retained": 2**31}, "num_retained to be a whole number of 32 bits"),
        ("register", {"retained_runs": 2**31}, "retained_runs to be a whole number of 32 bits"),
        ("register", {"checkpoint_timeout_seconds": 1e300}, "checkpoint_timeout_seconds to be from 0.01"),
        ("trigger", {"request_key": "x" * 33}, "request_key to be text of at most 32"),
        ("trigger", {"serves": "x" * 33}, "serves to be text of at most 32"),
        ("trigger", {"attempt": {"epoch": 2**31}}, "attempt.epoch to be a whole number of 32 bits"),
        ("trigger", {"attempt": {"job_id": "x" * 33}}, "attempt.job_id to be text of at most 32"),
        ("acknowledge", {"metadata_sha256": "x" * 65}, "metadata_sha256 to be text of at most 64"),
        ("acknowledge", {"counts": {"rows": 2**63}}, "counts.rows to be a whole number of 64 bits"),
        ("acknowledge", {"counts": {"a\x00b": 1}}, "counts.a key to be text without U+0000"),
        ("confirm-commits", {"checkpoint_ids": [1, 2**63]}, "checkpoint_ids.1 to be a whole number of 64 bits"),
        ("trigger", {"attempt": {"epoch": "1"}}, "attempt.epoch: Expected a whole number"),
        ("trigger", {"request_key": 2**63}, "request_key: Expected text"),
        ("acknowledge", {"metadata_uri": "\ud800"}, "metadata_uri to be text without U+0000 and lone surrogates"),
        ("acknowledge", {"counts": {"items": float("inf")}}, "counts.items: Expected a whole number"),
        ("acknowledge", {"counts": {"items": 10**400}}, "counts.items to be a whole number of 64 bits"),
        ("register", {"checkpoint_timeout_seconds": float("nan")}, "checkpoint_timeout_seconds to be a finite number"),
        ("finish", {"status": -(2**63) - 1}, "status: Expected"),
    ],
)
def test_the_field_that_no_database_keeps_is_named(
    lasting: Stage, verb: str, change: dict[str, Any], named: str
) -> None:
    stage = _fresh(lasting)
    bodies = {
        "register": registration(),
        "trigger": {"attempt": stage.attempt.ref, "request_key": new_key()},
        "acknowledge": acknowledgement(stage.attempt, stage.pending),
        "confirm-commits": {"attempt": stage.attempt.ref, "checkpoint_ids": []},
        "finish": {"attempt": stage.attempt.ref},
    }
    body = bodies[verb]
    for name, value in change.items():
        body[name] = body[name] | value if name == "attempt" else value
    token = stage.task_token() if verb == "register" else stage.attempt.token
    before = _without_tokens(stage.api.rows())

    text = json.dumps(body).encode(errors="surrogatepass")
    path, json_header = f"/v1/attempts/{verb}", {"Content-Type": "application/json"}
    response = _send(stage.api, ("POST", path), path, token, text, json_header)

    assert response.status_code in (400, 422), response.text
    assert response.json()["code"] == "invalid_configuration"
    assert named in response.json()["message"]
    assert _without_tokens(stage.api.rows()) == before


def _without_tokens(rows: dict[str, list[str]]) -> dict[str, list[str]]:
    # A token remembers the registration that it was first used for, refused or not.
    return {table: kept for table, kept in rows.items() if table != "statecheck_token"}


def test_the_longest_names_the_largest_numbers_and_any_other_text_are_kept(lasting: Stage) -> None:
    job, uid = "j" * 500, "u" * 500
    attempt = lasting.api.attempt(job, uid, num_retained=2**31 - 1, retained_runs=2**31 - 1)
    numbers = {"metadata_size": 2**63 - 1, "counts": {"epoch": 2**63 - 1, "𝄞 \t\n\x7f": 1}}
    reply = accepted(
        lasting.api.post("acknowledge", attempt.token, acknowledgement(attempt, lasting.api.trigger(attempt)) | numbers)
    )
    assert {name: reply["checkpoint"][name] for name in numbers} == numbers


def test_a_key_that_another_job_has_used_is_refused(lasting: Stage) -> None:
    used = lasting.api.attempt("first job").message["attempt_key"]
    message = registration("another job", attempt_key=used)
    response = lasting.api.post("register", lasting.api.task_token(), message)
    assert (response.status_code, response.json()["code"]) == (400, "invalid_configuration")


def test_every_field_of_a_message_has_the_limit_of_its_column() -> None:
    fields = {name: kind for each in _message_classes() for name, kind in _plain_fields(each)}
    kept = {name for name, kind in fields.items() if kind in (str, int, float, tuple)} - OF_NO_COLUMN
    assert {"job_id", "request_key", "epoch", "metadata_size"} <= kept
    columns = {column.name for table in METADATA.sorted_tables for column in table.columns}
    limits = columns | requests.STORED_AS.keys() | requests.NEVER_STORED
    assert kept <= limits, "name the column in STORED_AS"


def _message_classes() -> set[type[Any]]:
    routes = create_app(ApiServer(create_engine("sqlite://")).services).routes
    bodies = (getattr(route, "body_field", None) for route in routes)
    return {body.field_info.annotation for body in bodies if body is not None}


def _plain_fields(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        kinds = [hints[field.name], *get_args(hints[field.name])]
        inner = [each for each in kinds if dataclasses.is_dataclass(each)]
        for each in inner:
            yield from _plain_fields(each)  # type: ignore[arg-type]
        if not inner:
            yield field.name, _plain(kinds)


def _plain(kinds: list[Any]) -> Any:
    found = [getattr(kind, "__supertype__", get_origin(kind) or kind) for kind in kinds]
    return next((kind for kind in found if kind in (str, int, float, tuple)), None)


def test_each_message_has_a_name_of_its_own_in_the_description_of_the_api() -> None:
    assert not [name for name in description()["components"]["schemas"] if "_" in name or "-" in name]


def test_the_limits_are_those_of_the_tables() -> None:
    """A column that is made wider lets longer values in without a change elsewhere."""
    with pytest.raises(InvalidConfigurationError, match="epoch"):
        requests.require_storable(_Message(epoch=2**31))
    requests.require_storable(_Message(epoch=2**31 - 1))


@dataclasses.dataclass(frozen=True)
class _Message:
    epoch: int


def test_a_body_that_is_too_large_is_refused_before_its_token(api: ApiServer) -> None:
    """Whoever is unknown gets even less to say."""
    for size, token, status in ((MAX_BODY_BYTES + 1, "unknown", 413), (MAX_BODY_BYTES, "unknown", 403)):
        body = b"[" + b" " * (size - 2) + b"]"
        response = _send(api, ("POST", ""), "/v1/attempts/trigger", token, body, {"Content-Type": "application/json"})
        assert response.status_code == status
    body = b" " * (MAX_BODY_BYTES_WITHOUT_TOKEN + 1)
    assert _send(api, ("POST", ""), "/v1/token", "", body, {"Content-Type": "application/json"}).status_code == 413


def test_a_body_with_a_length_of_thousands_of_digits_is_refused(api: ApiServer) -> None:
    headers = {"Content-Type": "application/json", "Content-Length": "9" * 5000}
    assert _send(api, ("POST", ""), "/v1/token", "", b"{}", headers).status_code == 413


class _Chunks:
    """A body that never ends, and how much of it was taken."""

    def __init__(self) -> None:
        self.taken = 0

    async def receive(self) -> dict[str, Any]:
        self.taken += 1 << 16
        assert self.taken <= 2 * MAX_BODY_BYTES, "it must stop reading"
        return {"type": "http.request", "body": b"[" * (1 << 16), "more_body": True}


@pytest.mark.parametrize("path", ["/v1/attempts/trigger", "/v1/token"])
def test_a_body_without_length_is_read_up_to_the_limit_and_no_further(stage: Stage, path: str) -> None:
    body, sent = _Chunks(), []
    token = f"Bearer {stage.attempt.token}".encode()
    headers = [(b"authorization", token), (b"content-type", b"application/json"), (b"transfer-encoding", b"chunked")]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b"", "root_path": ""}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(create_app(stage.api.services)(scope, body.receive, send))

    assert sent[0]["status"] == 413
    assert (b"connection", b"close") in sent[0]["headers"]


def test_nothing_of_a_message_is_read_before_the_token(stage: Stage) -> None:
    body, sent = _Chunks(), []
    headers = [(b"authorization", b"Bearer unknown"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/attempts/trigger", "headers": headers, "query_string": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(create_app(stage.api.services)(scope, body.receive, send))

    assert (sent[0]["status"], body.taken) == (403, 0)


def test_a_message_is_parsed_outside_the_event_loop(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def parse(text: bytes) -> Any:
        threads.append(threading.current_thread())
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        return json.loads(text)

    monkeypatch.setattr(requests, "json", SimpleNamespace(loads=parse))
    stage.api.trigger(stage.attempt)
    assert len(threads) == 1
