"""Requests in other forms than clients send: other spellings, verbs, headers, positions and fields."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.codec import encode
from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.job_list import JobSort
from tests.hostile.neighbours import FOREIGN, KEEPING, MARKER, OWN, SECRET_UID, Neighbours
from tests.messages import make_savepoint_request
from tests.unit.api.server import accepted

HIDDEN = job_id_of(FOREIGN)
SPELLINGS = {
    "upper case": HIDDEN.upper(),
    "encoded": "".join(f"%{ord(each):02x}" for each in HIDDEN),
    "encoded twice": "".join(f"%25{ord(each):02x}" for each in HIDDEN),
    "full width": "".join(chr(ord(each) + 0xFEE0) for each in HIDDEN),
    "dot": f"{HIDDEN}.",
    "space": f"{HIDDEN}%20",
    "nul": f"{HIDDEN}%00",
    "line break": f"{HIDDEN}%0a",
    "parameter": f"{HIDDEN};x=1",
    "soft hyphen": f"{HIDDEN}%c2%ad",
    "own then parent": f"{job_id_of(OWN)}/../{HIDDEN}",
    "own then encoded parent": f"{job_id_of(OWN)}%2f..%2f{HIDDEN}",
    "name": FOREIGN,
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_no_spelling_of_an_id_reads_the_job_of_others(there: Neighbours, spelling: str) -> None:
    own, operator = SPELLINGS[spelling], operator_id_of(SECRET_UID)
    paths = ("", "/latest", "/checkpoints", "/checkpoints/3", f"/operators/{operator}", f"/operators/{operator}/latest")
    for holder, root, path in product(("viewer", "login", "user_reader", "attempt"), ("/v1/jobs", "/jobs"), paths):
        reply = there.ask("GET", f"{root}/{own}{path}", there.tokens[holder])
        assert reply.status_code in (400, 401, 403, 404, 422), (holder, root, path)
        assert MARKER not in reply.text, (holder, root, path)


@pytest.mark.parametrize("place", ["query", "cookie", "basic", "two headers", "other scheme", "forwarded user"])
def test_a_token_elsewhere_than_in_its_header_is_none(there: Neighbours, place: str) -> None:
    task = there.tokens["task"]
    basic = base64.b64encode(f"anna:{task}".encode()).decode()
    sent: dict[str, tuple[str, dict[str, str]]] = {
        "query": (f"?token={task}&access_token={task}", {}),
        "cookie": ("", {"Cookie": f"_token={task}; token={task}; session={task}"}),
        "basic": ("", {"Authorization": f"Basic {basic}"}),
        "two headers": ("", {"Authorization": f"Bearer {there.tokens['forged']}, Bearer {task}"}),
        "other scheme": ("", {"Authorization": f"Token {task}"}),
        "forwarded user": ("", {"X-Forwarded-User": "administrator", "Remote-User": "administrator"}),
    }
    query, headers = sent[place]
    for path in ("/v1/jobs", f"/v1/jobs/{HIDDEN}", "/jobs", "/v1/job-list"):
        reply = there.ask("GET", f"{path}{query}", None, **headers)
        assert reply.status_code in (401, 403), path
        assert MARKER not in reply.text


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "TRACE", "PUT", "PATCH", "DELETE", "get", "PROPFIND"])
def test_no_other_verb_is_answered_without_a_login(there: Neighbours, method: str) -> None:
    kept = there.rows_of(HIDDEN)
    override = {"X-HTTP-Method-Override": "GET", "Access-Control-Request-Method": "GET", "Origin": "http://elsewhere"}
    for path in ("/v1/jobs", f"/v1/jobs/{HIDDEN}", f"/jobs/{HIDDEN}", "/v1/token/login", "/v1/maintenance/remove"):
        for token in (None, there.tokens["forged"]):
            reply = there.ask(method, path, token, None, **override)
            assert reply.status_code in (401, 403, 404, 405), (method, path)
            assert "access-control-allow-origin" not in reply.headers
    assert there.rows_of(HIDDEN) == kept


@pytest.mark.parametrize(
    "path", ["..%2f..%2fapi%2ftokens.py", "%2e%2e/%2e%2e/settings.py", "....//tokens.py", "%2fetc%2fpasswd"]
)
def test_no_path_of_a_static_file_leaves_its_folder(there: Neighbours, path: str) -> None:
    reply = there.ask("GET", f"/static/{path}", None)
    assert reply.status_code in (401, 403, 404)
    assert "import" not in reply.text


@pytest.mark.parametrize("first", [OWN, FOREIGN])
def test_a_field_that_is_there_twice_acts_for_no_other_attempt(there: Neighbours, first: str) -> None:
    kept = there.rows_of(HIDDEN)
    own, theirs = (json.dumps(encode(there.attempts[each])) for each in ("attempt", FOREIGN))
    one, other = (own, theirs) if first == OWN else (theirs, own)
    body = f'{{"attempt": {one}, "request_key": "{new_key()}", "attempt": {other}}}'
    headers = {"Authorization": f"Bearer {there.tokens['attempt']}", "Content-Type": "application/json"}
    reply = there.airflow.post("/statecheck/v1/attempts/trigger", content=body, headers=headers)
    assert reply.status_code == (403 if other == theirs else 200), reply.text
    assert there.rows_of(HIDDEN) == kept
    there.restore()


def test_no_field_that_a_message_does_not_have_changes_what_its_caller_may(there: Neighbours) -> None:
    added = {
        "is_named": True,
        "takes_test_jobs": True,
        "caller": {"dag_id": "dag_of_theirs", "login": None},
        "token": {"job_id": HIDDEN, "is_read_only": False},
        "job_id": HIDDEN,
        "job_name": FOREIGN,
        "requested_by": "administrator",
        "is_maintenance": True,
    }
    kept = there.rows_of(HIDDEN)
    trigger = {"attempt": encode(there.attempts["attempt"]), "request_key": new_key()}
    reply = accepted(there.ask("POST", "/v1/attempts/trigger", there.tokens["attempt"], added | trigger))
    assert HIDDEN not in json.dumps(reply)
    for path in ("savepoints/request", "maintenance/remove", "maintenance/settle", "savepoints/dispose"):
        for holder in ("task", "login", "attempt", "leader"):
            message = added | trigger | {"operator_id": operator_id_of(SECRET_UID), "pointer": "memory://x"}
            assert there.ask("POST", f"/v1/{path}", there.tokens[holder], message).status_code == 403
    assert there.rows_of(HIDDEN) == kept
    there.restore()


@pytest.mark.parametrize("claimed", ["", "administrator"])
def test_a_savepoint_is_requested_by_nobody_else_than_its_requester(there: Neighbours, claimed: str) -> None:
    requested = encode(make_savepoint_request(there.attempts[OWN], target="s3://lake/saved", requested_by=claimed))
    token = there.tokens["maintenance"]
    accepted(there.ask("POST", "/v1/savepoints/request", token, requested))
    accepted(there.ask("POST", "/v1/savepoints/request", token, requested))
    job = accepted(there.ask("GET", f"/v1/jobs/{job_id_of(OWN)}", token))
    [found] = [each["requested_by"] for each in job["requests"] if each["request_key"] == requested["request_key"]]
    task = f"(task {KEEPING}.features of run {there.running[KEEPING].run_id})"
    assert found == f"{claimed} {task}".strip()
    there.restore()


def _positions(sort: JobSort) -> Iterator[str]:
    values: tuple[Any, ...] = (None, -1, 2**62, "", "a", "zzzz", "2026-01-01", [], {"a": 1})
    for value, name in product(values, ("", "a", f"~{MARKER}")):
        yield base64.urlsafe_b64encode(json.dumps([sort.value, value, name]).encode()).decode()


@pytest.mark.parametrize("sort", list(JobSort))
def test_no_position_in_the_list_tells_of_a_job_that_is_hidden(there: Neighbours, sort: JobSort) -> None:
    """A position has the name of the last job of its page."""
    token, query = there.tokens["viewer"], f"/v1/job-list?sort={sort.value}&limit=1"
    for following in (None, *_positions(sort)):
        seen = list[Any]()
        while len(seen) < 5:
            reply = there.ask("GET", query + ("" if following is None else f"&after={following}"), token)
            assert reply.status_code in (200, 400, 422), reply.text
            if reply.status_code != 200:
                assert "jobs" not in reply.json()
                break
            page = reply.json()
            seen.append([job["name"] for job in page["jobs"]])
            following = page["following"]
            assert MARKER not in json.dumps(page["jobs"]) + base64.urlsafe_b64decode(following or "").decode()
            assert FOREIGN not in json.dumps(page["jobs"]) + base64.urlsafe_b64decode(following or "").decode()
            if following is None:
                break
        else:
            pytest.fail(f"the pages do not end: {seen}")
