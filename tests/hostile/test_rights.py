"""
Who may do what to whose job: every route of the API's own description, for each kind of holder, and for a job of its
own Dag, of another Dag, and of none.

``RIGHTS`` lists the routes. One that is added to the API without a right here fails.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, replace
from enum import Enum
from itertools import product
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.codec import encode
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import EndSavepoint, FinishAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointRecord
from airflow_provider_statecheck.checkpoint.store import no_such_job
from airflow_provider_statecheck.exceptions import AccessDeniedError, ConcurrentAttemptError
from airflow_provider_statecheck.gateway.verbs import decode_error
from airflow_provider_statecheck.maintenance.gc import JobReport
from airflow_provider_statecheck.maintenance.job_maintenance import each_job
from airflow_provider_statecheck.maintenance.savepoints import JobSavepoints
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from tests.hostile.neighbours import (
    COMPLETED,
    FOREIGN,
    JOINED,
    MARKER,
    MAY,
    MINE,
    MISSING,
    OWN,
    SECRET_UID,
    THEIRS,
    EveryTaskRuns,
    Neighbours,
)
from tests.messages import complete_checkpoint, make_registration, make_savepoint_request
from tests.soak import rest_in_soak
from tests.unit.api.server import accepted

Route = tuple[str, str]


class Outcome(Enum):
    """What becomes of a call."""

    ANSWERED = "the caller has the right, whatever the call itself finds"
    REFUSED = "the caller lacks the right"
    HIDDEN = "for this caller, there is no such job"
    EMPTY = "the caller may ask, and there is nothing"


ANSWERED, REFUSED, HIDDEN, EMPTY = Outcome
USERS = ("viewer", "editor", "administrator")
READERS = ("user_reader", "task_reader")
FREE = ("task", "login", "maintenance", "login_of_maintenance")
"""Tokens of tasks that are not bound to an attempt: each obtained by the task or by a user."""
DRIVERS = ("attempt", "attempt_by_login")
STRANGERS = ("nobody", "forged", "ended_task")
JOINED_BY_LOGIN = ("joined_attempt_by_login", "joined_leader_by_login")
"""Tokens that a user obtained and that are bound to a job, which then a Dag has joined that the user may not read."""
OF_JOINED = ("joined_attempt", *JOINED_BY_LOGIN)
HOLDERS = (*USERS, *READERS, *FREE, *DRIVERS, "leader", *STRANGERS, *OF_JOINED)


@dataclass(frozen=True)
class Right:
    """Holders whose calls are answered or hidden, by the job; all others are refused."""

    own: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()
    hidden_own: tuple[str, ...] = ()
    hidden_foreign: tuple[str, ...] = ()
    hidden_missing: tuple[str, ...] = ()
    hidden_joined: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    """Other holders who may ask, and whose call finds nothing and has no effect."""

    def outcome(self, holder: str, job: str) -> Outcome:
        if job == JOINED and holder not in OF_JOINED:
            # For all who are not bound to it, it is a job of others as soon as their Dag has joined it.
            job = FOREIGN
        answered = {OWN: self.own, FOREIGN: self.foreign, MISSING: self.missing, JOINED: self.joined}
        hidden = {
            OWN: self.hidden_own,
            FOREIGN: self.hidden_foreign,
            MISSING: self.hidden_missing,
            JOINED: self.hidden_joined,
        }
        if holder in answered[job]:
            return ANSWERED
        if holder in hidden[job]:
            return HIDDEN
        return EMPTY if holder in self.empty else REFUSED


def _always(*holders: str) -> Right:
    return Right(own=holders, foreign=holders, missing=holders, joined=holders)


READ = Right(
    own=(*USERS, *READERS, *FREE, *DRIVERS, "leader"),
    foreign=("administrator", "task", "maintenance"),
    hidden_foreign=("viewer", "editor", "login", "login_of_maintenance"),
    hidden_missing=(*USERS, "login", "login_of_maintenance"),
    joined=("joined_attempt",),
    hidden_joined=JOINED_BY_LOGIN,
    empty=("task", "maintenance"),
)
VIEW = Right(own=USERS, foreign=("administrator",), hidden_foreign=("viewer", "editor"), hidden_missing=USERS)
EDIT = Right(
    own=("editor", "administrator"),
    foreign=("administrator",),
    hidden_foreign=("viewer", "editor"),
    hidden_missing=USERS,
)
CONFIRM = replace(EDIT, hidden_own=("viewer",))
LIST = _always(*USERS)
LOG_IN = Right(own=("editor", "administrator"), foreign=("administrator",))
TASK = _always(*FREE)
RENEW = _always("task_reader")
ATTEMPT = Right(own=DRIVERS, joined=("joined_attempt",))
ADOPT = Right(own=("task", "login", *DRIVERS), joined=("joined_attempt",), empty=FREE)
JOIN = Right(own=FREE, foreign=("task", "maintenance"), missing=FREE)
"""A named job belongs to all Dags for their tasks, and to the users who may edit all of its Dags."""
MAINTAIN = Right(
    own=("maintenance", "login_of_maintenance"),
    foreign=("maintenance",),
    hidden_foreign=("login_of_maintenance",),
    hidden_missing=("login_of_maintenance",),
    empty=("maintenance",),
)
LEAD = Right(
    own=("leader", *MAINTAIN.own),
    foreign=MAINTAIN.foreign,
    hidden_foreign=MAINTAIN.hidden_foreign,
    hidden_missing=MAINTAIN.hidden_missing,
    empty=MAINTAIN.empty,
)


def _calls(folder: str, right: Right, *names: str) -> dict[Route, Right]:
    return {("POST", f"/v1/{folder}/{name}"): right for name in names}


def _reads(right: Right, *paths: str) -> dict[Route, Right]:
    return {("GET", path): right for path in paths}


RIGHTS: dict[Route, Right] = {
    ("GET", "/v1/health"): _always(*HOLDERS),
    ("POST", "/v1/token"): Right(),
    ("POST", "/v1/token/login"): LOG_IN,
    ("POST", "/v1/token/state"): VIEW,
    ("POST", "/v1/token/read"): TASK,
    ("POST", "/v1/token/renew"): RENEW,
    ("GET", "/v1/jobs"): TASK,
    ("GET", "/v1/job-list"): LIST,
    ("POST", "/v1/jobs/{job_id}/state/{name}"): READ,
    ("POST", "/ui/jobs/{job_id}/{action}"): EDIT,
    **_reads(READ, *(f"/v1/jobs/{{job_id}}{path}" for path in ("", "/latest", "/checkpoints", "/state", "/items"))),
    **_reads(READ, *(f"/v1/jobs/{{job_id}}/{path}/{{name}}" for path in ("state", "snapshots"))),
    **_reads(READ, "/v1/jobs/{job_id}/checkpoints/{checkpoint_id}", "/v1/jobs/{job_id}/snapshots"),
    **_reads(READ, "/v1/jobs/{job_id}/operators/{operator_id}/latest"),
    **_reads(VIEW, "/ui/jobs/{job_id}/actions", "/jobs/{job_id}", "/jobs/{job_id}/checkpoints"),
    **_reads(VIEW, "/jobs/{job_id}/operators/{operator_id}", "/jobs/{job_id}/checkpoints/{checkpoint_id}"),
    **_reads(EDIT, "/ui/jobs/{job_id}/{action}/preview"),
    **_reads(CONFIRM, "/jobs/{job_id}/actions/{action}"),
    **_reads(LIST, "/jobs"),
    **_reads(VIEW, "/dags/{dag_id}", "/dags/{dag_id}/runs/{run_id}", "/dags/{dag_id}/runs/{run_id}/tasks/{task_id}"),
    **_calls("attempts", JOIN, "register"),
    **_calls("attempts", ADOPT, "adopt"),
    **_calls("attempts", ATTEMPT, "confirm-restore", "trigger", "acknowledge", "decline", "confirm-discards"),
    **_calls("attempts", ATTEMPT, "confirm-commits", "report-progress", "finish"),
    **_calls("maintenance", MAINTAIN, "confirm-discards", "close-abandoned", "settle-run", "forget", "refusal"),
    **_calls("maintenance", MAINTAIN, "settle", "retire", "remove"),
    **_calls("maintenance", _always("maintenance", "login_of_maintenance"), "drop-tokens"),
    **_calls("savepoints", MAINTAIN, "request", "begin", "end", "pin", "dispose", "restore"),
    **_calls("aligned", JOIN, "lead"),
    **_calls("aligned", LEAD, "resign", "count-ids", "enqueue", "choose", "begin", "acknowledge", "abort"),
    **_calls("aligned", LEAD, "take-over", "is-finalizing", "adopt", "record-restore", "effects", "record-discards"),
    **_calls("aligned", LEAD, "put-handle", "handles", "remove-handle", "end-handles", "outcome", "owns"),
    **_calls("aligned", LEAD, "report-failure"),
}
QUERIES = {
    ("GET", "/v1/jobs/{job_id}/state/{name}"): "?key=EUR",
    ("GET", "/v1/jobs/{job_id}/items"): "?loop=months",
    ("GET", "/ui/jobs/{job_id}/{action}/preview"): "?run_key=2026-01-01",
    ("GET", "/jobs/{job_id}/actions/{action}"): "?run_key=2026-01-01",
}
SHARES = 7
"""``make test`` asks one request of so many. All routes, and all holders, are among them."""


@pytest.fixture(scope="module")
def operations(there: Neighbours) -> dict[Route, dict[str, Any]]:
    """What the API's own description says of each route."""
    paths = accepted(there.ask("GET", "/openapi.json", there.tokens["viewer"]))["paths"]
    return {(verb.upper(), path): operation for path, verbs in paths.items() for verb, operation in verbs.items()}


def test_every_route_of_the_description_has_a_right(operations: dict[Route, dict[str, Any]]) -> None:
    assert set(operations) == set(RIGHTS)


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("share", rest_in_soak(range(SHARES), 0))
def test_each_holder_has_the_rights_of_the_table_and_no_others(
    there: Neighbours, operations: dict[Route, dict[str, Any]], share: int, holder: str
) -> None:
    changed = there.changes()
    kept = there.rows_of(job_id_of(FOREIGN))
    offset, problems = HOLDERS.index(holder), list[str]()
    for route, job in list(product(RIGHTS, _jobs_of(holder)))[(share + offset) % SHARES :: SHARES]:
        outcome, case = RIGHTS[route].outcome(holder, job), f"{holder}: {' '.join(route)} of {job!r}"
        response = _send(there, operations[route], route, holder, job)
        if not _is_as_expected(response, outcome, job):
            problems.append(f"{case}: {response.status_code} {response.text[:200]} instead of {outcome.name}")
        may_read = READ.outcome(holder, JOINED if job == JOINED else FOREIGN) is ANSWERED
        if not may_read and MARKER in response.text:
            at = response.text.index(MARKER)
            problems.append(f"{case}: {response.status_code} tells {response.text[max(at - 150, 0) : at + 50]!r}")
        if changed():
            if outcome is not ANSWERED:
                problems.append(f"{case}: changed rows")
            if holder not in RIGHTS[route].foreign and there.rows_of(job_id_of(FOREIGN)) != kept:
                problems.append(f"{case}: changed the other job")
            there.restore()
            changed()
    assert problems == []


@pytest.mark.parametrize(
    "path", ["/jobs/{foreign}", "/v1/jobs/{foreign}", "/jobs", "/v1/job-list", "/jobs/{own}/operators/{loaded}"]
)
def test_one_who_may_read_it_is_told_of_the_other_job(there: Neighbours, path: str) -> None:
    """The search above would find it."""
    place = path.format(foreign=job_id_of(FOREIGN), own=job_id_of(OWN), loaded=operator_id_of("loaded"))
    assert MARKER in there.ask("GET", place, there.tokens["administrator"]).text
    assert MARKER not in there.ask("GET", place, there.tokens["viewer"]).text


def _jobs_of(holder: str) -> tuple[str, ...]:
    if holder in OF_JOINED:
        return (JOINED, FOREIGN)
    return (OWN, FOREIGN, MISSING, JOINED)


@pytest.mark.parametrize("holder", OF_JOINED)
def test_a_token_by_login_ends_with_the_right_on_a_job_that_another_dag_joins_and_that_of_a_task_does_not(
    there: Neighbours, holder: str
) -> None:
    token, job_id = there.tokens[holder], job_id_of(JOINED)
    read = there.ask("GET", f"/v1/jobs/{job_id}", token)
    if holder == "joined_leader_by_login":
        path, body = "aligned/count-ids", {"leader": encode(there.leaders[JOINED]), "at_least": 15}
    else:
        path, body = "attempts/trigger", {"attempt": encode(there.attempts[holder]), "request_key": new_key()}
    written = there.ask("POST", f"/v1/{path}", token, body)
    there.restore()
    expected = (200, 200) if holder == "joined_attempt" else (404, 403)
    assert (read.status_code, written.status_code) == expected, written.text
    assert (SECRET_UID in read.text) is (holder == "joined_attempt")


def test_a_reader_of_a_job_learns_nothing_of_a_task_of_another_dag_that_was_refused_in_it(there: Neighbours) -> None:
    coordinator, job = AttemptCoordinator(SqlJobStore(there.engine), EveryTaskRuns()), job_id_of(OWN)
    for dag_id in (MINE, THEIRS):
        owner = replace(there.owner(dag_id), logical_task=f"{dag_id}/refused", label=f"task {dag_id}.refused")
        with pytest.raises(ConcurrentAttemptError):
            coordinator.register(make_registration(job_name=OWN, uid="loaded", owner=owner))
    reads = [("GET", f"/v1/jobs/{job}", holder, None) for holder in READ.own]
    settles = [("POST", "/v1/maintenance/settle", holder, {"job_id": job, "dry_run": True}) for holder in MAINTAIN.own]
    for method, path, holder, body in (*reads, *settles):
        told = accepted(there.ask(method, path, there.tokens[holder], body))
        refused = json.dumps([row["content"].get("refusals", []) for row in told["statistics"]])
        assert f"{MINE}.refused" in refused, holder
        assert THEIRS not in refused, holder
    for holder, is_told in (("viewer", False), ("editor", False), ("administrator", True)):
        page = there.ask("GET", f"/jobs/{job}/operators/{operator_id_of('loaded')}", there.tokens[holder])
        assert f"{MINE}.refused" in page.text
        assert (f"{THEIRS}.refused" in page.text) is is_told
    there.restore()


@pytest.mark.parametrize("named", [OWN, "archive"])
def test_a_user_disposes_of_no_savepoint_of_a_job_that_the_user_may_not_edit(there: Neighbours, named: str) -> None:
    store, owner = SqlJobStore(there.engine), job_id_of("archive")
    savepoint = _savepoint_of_theirs(there)
    kept = there.rows_of(owner)
    message = {"pointer": savepoint.location, "job_id": job_id_of(named), "dry_run": False}
    refused = there.ask("POST", "/v1/savepoints/dispose", there.tokens["login_of_maintenance"], message)
    assert refused.status_code == (403 if named == OWN else 404), refused.text
    assert named != OWN or owner not in refused.text
    assert SECRET_UID not in refused.text
    assert there.rows_of(owner) == kept
    assert store.claim(savepoint.location) is None
    disposed = accepted(there.ask("POST", "/v1/savepoints/dispose", there.tokens["maintenance"], message))
    assert disposed["status"] == "disposed"
    there.restore()


def _savepoint_of_theirs(there: Neighbours) -> CheckpointRecord:
    store = SqlJobStore(there.engine)
    coordinator, savepoints = AttemptCoordinator(store), JobSavepoints(store)
    owner = there.owner(THEIRS)
    attempt = coordinator.register(make_registration(job_name="archive", uid=SECRET_UID, owner=owner)).attempt
    complete_checkpoint(coordinator, attempt)
    coordinator.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FAILED))
    request = savepoints.request(make_savepoint_request(attempt))
    begun = savepoints.begin(attempt.job_id, request.request_key, "s3://lake", new_key())
    metadata_uri = f"{begun.location}/_metadata"
    ended = EndSavepoint(job_id=attempt.job_id, checkpoint_id=begun.checkpoint_id, metadata_uri=metadata_uri)
    return savepoints.end(ended)


def test_a_job_that_the_user_of_a_maintenance_token_may_not_edit_stops_no_maintenance_of_others(
    there: Neighbours, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MAY["keeper"], THEIRS, frozenset({"GET"}))
    token = there.tokens["login_of_maintenance"]

    def close(job_id: JobId) -> JobReport:
        reply = there.ask("POST", "/v1/maintenance/close-abandoned", token, {"job_id": job_id})
        if not reply.is_success:
            raise decode_error(reply.json())
        return JobReport(job=job_id)

    listed = [JobId(job["job_id"]) for job in accepted(there.ask("GET", "/v1/jobs", token))]
    reports = {report.job: report for report in each_job(listed, close, JobReport)}
    assert {job_id_of(job) for job in (OWN, FOREIGN)} <= reports.keys()
    assert reports[job_id_of(OWN)].problems == []
    [problem] = reports[job_id_of(FOREIGN)].problems
    assert "may not work on job" in problem
    token = there.tokens["task"]
    with pytest.raises(AccessDeniedError, match="maintenance_dags"):
        list(each_job(listed, close, JobReport))


def _send(there: Neighbours, operation: dict[str, Any], route: Route, holder: str, job: str) -> Any:
    method, template = route
    action = "rewind" if "{action}" in template else ""
    dag_id = {OWN: MINE, MISSING: "dag_of_none"}.get(job, THEIRS)
    path = template.format(
        job_id=job_id_of(job),
        operator_id=there.attempts[job].operator_id,
        checkpoint_id=COMPLETED,
        name="totals",
        action=action,
        dag_id=dag_id,
        run_id=there.running[THEIRS if dag_id == THEIRS else MINE].run_id,
        task_id="features",
    )
    headers = {"X-Statecheck-Action": action, "Sec-Fetch-Site": "same-origin"} if action else {}
    body = _body(there, operation, route, holder, job)
    return there.ask(method, path + QUERIES.get(route, ""), there.tokens.get(holder), body, **headers)


def _body(there: Neighbours, operation: dict[str, Any], route: Route, holder: str, job: str) -> dict[str, Any] | None:
    if "requestBody" not in operation:
        return None
    examples = operation["requestBody"]["content"]["application/json"]["examples"]
    body = dict(copy.deepcopy(next(iter(examples.values()))["value"]))
    attempts, leaders = there.attempts, there.leaders
    place = there.place(MINE if job in (OWN, MISSING) else THEIRS)
    place |= {"run_id": "no such run"} if job == MISSING else {}
    is_own = job == OWN or (job == JOINED and holder in OF_JOINED)
    known = {
        "job_id": job_id_of(job),
        "job_name": job,
        "operator_id": attempts[job].operator_id,
        "attempt": encode(attempts.get(holder, attempts[job]) if is_own else attempts[job]),
        "leader": encode(leaders[job]),
        "owner": encode(there.owners.get(holder, there.owner(MINE))),
        "run_key": "2026-01-01",
        "allow_non_restored_state": True,
        **dict.fromkeys(("attempt_key", "request_key"), new_key()),
    }
    if route == ("POST", "/v1/token/login"):
        known |= place
    fields = set(body) | ({"allow_non_restored_state"} if "uid" in body else set())
    return body | {name: value for name, value in known.items() if name in fields}


def _is_as_expected(response: Any, outcome: Outcome, job: str) -> bool:
    is_refused, is_hidden = response.status_code in (401, 403), _is_hidden(response, job)
    if outcome is ANSWERED:
        return not is_refused and not is_hidden and response.status_code != 500
    if outcome is HIDDEN:
        return is_hidden
    return is_refused if outcome is REFUSED else not response.is_success or _is_empty(response.json())


def _is_empty(reply: Any) -> bool:
    return not any(reply.values()) if isinstance(reply, dict) else not reply


def _is_hidden(response: Any, job: str) -> bool:
    if response.status_code != 404:
        return False
    is_page = "text/html" in response.headers["content-type"]
    return is_page or response.json()["message"] == str(no_such_job(job_id_of(job)))
