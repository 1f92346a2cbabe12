"""
Who may call which route.

The routes are those of the API's own OpenAPI document, the messages are its examples with the identities of the test's
attempt. A route that is added there without a rule here fails.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from sqlalchemy import create_engine

from airflow_provider_statecheck.api.app import create_app
from airflow_provider_statecheck.api.services import Services
from airflow_provider_statecheck.api.tokens import ATTEMPT_LIFETIME, DRAIN_LIFETIME
from airflow_provider_statecheck.checkpoint.aligned.decider import CheckpointRequestDecider
from airflow_provider_statecheck.checkpoint.codec import decode, encode
from airflow_provider_statecheck.checkpoint.ids import JobId, new_key
from airflow_provider_statecheck.checkpoint.messages import RegisterAttempt
from tests.soak import every_nth
from tests.unit.api.conftest import copy_of
from tests.unit.api.server import (
    CALLER,
    JOB,
    UID,
    ApiServer,
    Tasks,
    accepted,
    description,
    owner_of,
    registration,
)
from tests.unit.api.stage import Stage

Route = tuple[str, str]
Refused = Callable[[Route, str], tuple[Stage, str | None]]
"""Returns a stage, and the header of a request that must be refused, of a kind in ``WRONG``."""

PUBLIC = {("GET", "/v1/health"), ("POST", "/v1/token")}
"""The documented ones; what they check themselves is tested elsewhere."""
REFUSED = (401, 403, 409)


@dataclass(frozen=True)
class Rule:
    """Whose token a route takes, and what its example needs to fit the stage."""

    right: Callable[[Stage], str]
    fit: Callable[[Stage], dict[str, Any]] = lambda stage: {}
    query: str = ""
    status: int = 200


DECIDER = CheckpointRequestDecider(max_concurrent=1, min_pause_seconds=0)


def _choice(stage: Stage) -> dict[str, Any]:
    return {"leader": stage.leader(), "decider": encode(DECIDER)}


def _own_handle(stage: Stage) -> dict[str, Any]:
    location = f"memory://base/{stage.attempt.job_id}/chk-14"
    return {
        "leader": stage.leader(),
        "location": location,
        "metadata": {"uri": f"{location}/_metadata", "size": 1, "sha256": ""},
    }


RULES: dict[Route, Rule] = {
    ("POST", "/v1/token/read"): Rule(Stage.task_token),
    ("POST", "/v1/token/renew"): Rule(Stage.reading_token),
    ("POST", "/v1/attempts/register"): Rule(Stage.task_token, lambda s: {"job_name": JOB, "attempt_key": new_key()}),
    ("POST", "/v1/attempts/adopt"): Rule(Stage.task_token),
    ("POST", "/v1/attempts/confirm-restore"): Rule(
        Stage.attempt_token, lambda s: {"checkpoint_id": 2, "skipped": [{"checkpoint_id": 3, "reason": "gone"}]}
    ),
    ("POST", "/v1/attempts/report-progress"): Rule(Stage.attempt_token),
    ("POST", "/v1/attempts/trigger"): Rule(Stage.attempt_token),
    ("POST", "/v1/attempts/acknowledge"): Rule(Stage.attempt_token, Stage.pending_metadata),
    ("POST", "/v1/attempts/decline"): Rule(Stage.attempt_token, lambda s: {"checkpoint_id": s.pending}),
    ("POST", "/v1/attempts/confirm-discards"): Rule(Stage.attempt_token, lambda s: {"checkpoint_ids": [1]}),
    ("POST", "/v1/attempts/confirm-commits"): Rule(Stage.attempt_token, lambda s: {"checkpoint_ids": [1]}),
    ("POST", "/v1/attempts/finish"): Rule(Stage.attempt_token),
    ("GET", "/v1/jobs"): Rule(Stage.task_token),
    ("GET", "/v1/jobs/{job_id}"): Rule(Stage.reading_token),
    ("GET", "/v1/jobs/{job_id}/latest"): Rule(Stage.reading_token),
    ("GET", "/v1/jobs/{job_id}/checkpoints"): Rule(Stage.reading_token),
    ("GET", "/v1/jobs/{job_id}/checkpoints/{checkpoint_id}"): Rule(Stage.reading_token),
    ("GET", "/v1/jobs/{job_id}/operators/{operator_id}/latest"): Rule(Stage.reading_token),
    # The checkpoints of the stage have no files.
    ("GET", "/v1/jobs/{job_id}/state"): Rule(Stage.reading_token),
    ("GET", "/v1/jobs/{job_id}/state/{name}"): Rule(Stage.reading_token, query="?key=EUR", status=503),
    ("POST", "/v1/jobs/{job_id}/state/{name}"): Rule(Stage.reading_token, status=503),
    ("GET", "/v1/jobs/{job_id}/snapshots"): Rule(Stage.reading_token, status=404),
    ("GET", "/v1/jobs/{job_id}/snapshots/{name}"): Rule(Stage.reading_token, status=404),
    ("GET", "/v1/jobs/{job_id}/items"): Rule(Stage.reading_token, query="?loop=months", status=404),
}
MAINTENANCE_ROUTES = {
    ("POST", "/v1/maintenance/confirm-discards"): Rule(Stage.maintenance_token, lambda s: {"checkpoint_ids": [1]}),
    ("POST", "/v1/maintenance/close-abandoned"): Rule(Stage.maintenance_token),
    ("POST", "/v1/maintenance/settle-run"): Rule(Stage.maintenance_token),
    ("POST", "/v1/maintenance/settle"): Rule(Stage.maintenance_token),
    ("POST", "/v1/maintenance/forget"): Rule(Stage.maintenance_token),
    ("POST", "/v1/maintenance/refusal"): Rule(Stage.maintenance_token),
    ("POST", "/v1/maintenance/retire"): Rule(Stage.maintenance_token),
    ("POST", "/v1/maintenance/remove"): Rule(Stage.maintenance_token),
    ("POST", "/v1/maintenance/drop-tokens"): Rule(Stage.maintenance_token),
    ("POST", "/v1/savepoints/request"): Rule(Stage.maintenance_token, lambda s: {"operator_id": s.idle_operator()}),
    ("POST", "/v1/savepoints/begin"): Rule(Stage.maintenance_token, lambda s: {"request_key": s.savepoint_request()}),
    ("POST", "/v1/savepoints/end"): Rule(Stage.maintenance_token, Stage.savepoint_metadata),
    ("POST", "/v1/savepoints/pin"): Rule(
        Stage.maintenance_token, lambda s: {"checkpoint_id": s.savepoint_of_job(), "parts": {}}
    ),
    ("POST", "/v1/savepoints/dispose"): Rule(Stage.maintenance_token, lambda s: {"pointer": s.completed_savepoint()}),
    ("POST", "/v1/savepoints/restore"): Rule(Stage.maintenance_token),
}
MAINTENANCE_ROUTES |= {
    ("POST", f"/v1/aligned/{verb}"): Rule(Stage.maintenance_token, lambda s: {"leader": s.leader()})
    for verb in (
        *("resign", "count-ids", "enqueue", "choose", "acknowledge", "abort", "take-over", "adopt"),
        *("is-finalizing", "record-restore", "effects", "record-discards", "handles", "remove-handle"),
        *("end-handles", "outcome", "owns", "report-failure"),
    )
}
MAINTENANCE_ROUTES |= {
    ("POST", "/v1/aligned/lead"): Rule(Stage.maintenance_token),
    ("POST", "/v1/aligned/begin"): Rule(Stage.maintenance_token, _choice),
    ("POST", "/v1/aligned/put-handle"): Rule(Stage.maintenance_token, _own_handle),
}
RULES |= MAINTENANCE_ROUTES
OF_ANY_TASK = {("POST", "/v1/aligned/lead")}
"""Routes of maintenance that every task may take for its own attempt."""
READS_OF_ITS_JOB = {route for route in RULES if "{job_id}" in route[1]}
# The stage of these tests runs and is young, so that nothing of it may be closed, retired or dropped.
MILD = ("close-abandoned", "settle-run", "settle", "refusal", "retire", "remove", "drop-tokens")
KEEPS_WHAT_RUNS = {("POST", f"/v1/maintenance/{verb}") for verb in MILD}
RENEWS = {("POST", "/v1/token/renew")}
# A token that was given at this moment is not extended by a renewal at the same moment.
READS_BY_MESSAGE = {("POST", "/v1/aligned/outcome"), ("POST", "/v1/aligned/owns")}
CHANGES_NOTHING = {*READS_OF_ITS_JOB, *READS_BY_MESSAGE, *KEEPS_WHAT_RUNS, *RENEWS, ("GET", "/v1/jobs")}


@dataclass(frozen=True)
class Request:
    """One request that the route's rule makes of the route's example."""

    method: str
    path: str
    body: dict[str, Any] | None

    def send(self, api: ApiServer, authorization: str | None) -> Any:
        headers = {} if authorization is None else {"Authorization": authorization}
        return api.client.request(self.method, f"/statecheck{self.path}", json=self.body, headers=headers)


def _operations() -> dict[Route, dict[str, Any]]:
    paths = description()["paths"]
    return {(verb.upper(), path): operation for path, verbs in paths.items() for verb, operation in verbs.items()}


def _request(stage: Stage, route: Route) -> Request:
    ref = stage.attempt.ref
    body = _example(_operations()[route])
    if body is not None:
        identities = {"attempt": ref, "job_id": ref["job_id"], "owner": encode(owner_of(CALLER))}
        body |= {name: value for name, value in identities.items() if name in body}
        body |= RULES[route].fit(stage)
    path = route[1].format(checkpoint_id=stage.pending, name="totals", **ref)
    return Request(route[0], f"{path}{RULES[route].query}", body)


def _example(operation: dict[str, Any]) -> dict[str, Any] | None:
    if "requestBody" not in operation:
        return None
    examples = operation["requestBody"]["content"]["application/json"]["examples"]
    return dict(copy.deepcopy(next(iter(examples.values()))["value"]))


def _expired(stage: Stage, right: str) -> str:
    stage.api.clock.advance(ATTEMPT_LIFETIME.total_seconds())
    return right


def _revoked_by_the_api(stage: Stage, _: str) -> str:
    stage.api.attempt()
    return stage.attempt.token


def _revoked_in_process(stage: Stage, _: str) -> str:
    stage.api.services.coordinator.register(decode(RegisterAttempt, registration()))
    return stage.attempt.token


def _of_an_earlier_epoch(stage: Stage, _: str) -> str:
    earlier = stage.attempt
    stage.attempt = stage.api.attempt()
    return earlier.token


def _of_the_same_epoch(stage: Stage, job: str = JOB, uid: str = UID) -> str:
    stage.api.attempt(job, uid)
    other = stage.api.attempt(job, uid)
    assert other.ref["epoch"] == stage.attempt.ref["epoch"]
    return other.token


def _of_an_attempt_that_ended_long_ago(stage: Stage, _: str) -> str:
    accepted(stage.api.finish(stage.attempt))
    stage.api.clock.advance(DRAIN_LIFETIME.total_seconds())
    return stage.attempt.token


NO_KNOWN_TOKEN: dict[str, Callable[[Stage, str], str]] = {
    "no_scheme": lambda stage, right: right,
    "another_scheme": lambda stage, right: f"Basic {right}",
    "no_text": lambda stage, right: "Bearer ",
    "two_tokens": lambda stage, right: f"Bearer {right} {right}",
    "forged": lambda stage, right: f"Bearer {secrets.token_urlsafe(32)}",
    "hash_of_the_right_one": lambda stage, right: f"Bearer {hashlib.sha256(right.encode()).hexdigest()}",
    "shortened": lambda stage, right: f"Bearer {right[:-1]}",
}
"""Headers without a token that was issued; the same code refuses them before any route's own rule."""
KNOWN_TOKEN: dict[str, Callable[[Stage, str], str]] = {
    "expired": _expired,
    "revoked_by_the_api": _revoked_by_the_api,
    "revoked_in_process": _revoked_in_process,
    "of_an_earlier_epoch": _of_an_earlier_epoch,
    "of_the_same_epoch_in_another_job": lambda stage, _: _of_the_same_epoch(stage, job="another job"),
    "of_another_operator": lambda stage, _: _of_the_same_epoch(stage, uid="another uid"),
    "read_only": lambda stage, _: stage.reading_token(),
    "read_only_of_another_job": lambda stage, _: stage.api.reading_token(stage.api.attempt(job="another job").job_id),
    "of_an_attempt_that_ended_long_ago": _of_an_attempt_that_ended_long_ago,
    "of_a_task_of_another_dag": lambda stage, _: stage.task_token(),
}
"""Tokens that were issued for something else, or are no longer valid."""


def _header(stage: Stage, wrong: str, right: Callable[[Stage], str]) -> str | None:
    if wrong == "no_token":
        return None
    token = right(stage)
    return (
        NO_KNOWN_TOKEN[wrong](stage, token) if wrong in NO_KNOWN_TOKEN else f"Bearer {KNOWN_TOKEN[wrong](stage, token)}"
    )


MAY_READ_ITS_JOB = ("of_another_operator", "read_only")
ONE_OF_EACH_KIND = {rule.right: route for route, rule in RULES.items()}.values()


def _cases() -> Iterator[tuple[Route, str]]:
    for route in RULES:
        taken = {
            *(MAY_READ_ITS_JOB if route in READS_OF_ITS_JOB else ()),
            *(("read_only", "read_only_of_another_job") if route in RENEWS else ()),
            *(() if route in ONE_OF_EACH_KIND else NO_KNOWN_TOKEN),
            *(() if route in MAINTENANCE_ROUTES.keys() - OF_ANY_TASK else ("of_a_task_of_another_dag",)),
        }
        yield from ((route, wrong) for wrong in ("no_token", *NO_KNOWN_TOKEN, *KNOWN_TOKEN) if wrong not in taken)


@pytest.fixture(scope="module")
def refused(prepared: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Refused]:
    """Return a stage with a wrong token. Requests that change nothing can share it."""
    with ExitStack() as open_stages:

        @cache
        def prepare(wrong: str, right: Callable[[Stage], str]) -> tuple[Stage, str | None]:
            stage = open_stages.enter_context(copy_of(prepared, tmp_path_factory.mktemp("refused")))
            return stage, _header(stage, wrong, right)

        yield lambda route, wrong: prepare(wrong, RULES[route].right)


def _name(value: Any) -> str:
    return value if isinstance(value, str) else "-".join(value).replace("/v1/", "")


def test_every_route_of_the_description_has_a_rule() -> None:
    assert set(_operations()) == PUBLIC | set(RULES)


def test_the_description_has_no_markup_of_docstrings() -> None:
    assert re.findall(r":\w+:`[^`]*`", json.dumps(description())) == []
    calls = [operation.get("description", "") for operation in _operations().values()]
    assert [text for text in calls if re.search(r"^:(param|raises|return)", text, re.MULTILINE)] == []


def test_no_route_is_hidden_from_the_description() -> None:
    app = create_app(Services(lambda: create_engine("sqlite://"), Tasks()))
    described = {path for _, path in _operations()}
    served = {getattr(route, "path_format", "") for route in app.routes}
    assert described <= served
    assert served == described


@pytest.mark.parametrize("route", sorted(RULES), ids=_name)
def test_the_right_token_is_taken(stage: Stage, route: Route) -> None:
    request, token = _request(stage, route), RULES[route].right(stage)
    before = stage.api.rows()
    response = request.send(stage.api, f"Bearer {token}")
    assert response.status_code == RULES[route].status, response.text
    assert (stage.api.rows() == before) == (route in CHANGES_NOTHING)


@pytest.mark.parametrize(("route", "wrong"), every_nth(list(_cases()), 3), ids=_name)
def test_a_wrong_token_is_refused_and_changes_nothing(refused: Refused, route: Route, wrong: str) -> None:
    stage, authorization = refused(route, wrong)
    request = _request(stage, route)
    before = stage.api.rows()

    response = request.send(stage.api, authorization)

    assert response.status_code in REFUSED, response.text
    assert {"code", "message"} <= set(response.json())
    assert stage.api.rows() == before


@pytest.mark.parametrize("route", sorted(READS_OF_ITS_JOB), ids=_name)
@pytest.mark.parametrize("token", MAY_READ_ITS_JOB)
def test_any_token_of_a_job_reads_that_job(stage: Stage, route: Route, token: str) -> None:
    response = _request(stage, route).send(stage.api, _header(stage, token, RULES[route].right))
    assert response.status_code == RULES[route].status, response.text


SPEAKING = sorted(route for route, rule in RULES.items() if rule.right is Stage.attempt_token)


@pytest.mark.parametrize("route", SPEAKING, ids=_name)
@pytest.mark.parametrize("change", [{"epoch": 1}, {"epoch": 3}, {"operator_id": "0" * 32}, {"job_id": "0" * 32}])
def test_an_attempt_speaks_for_no_other_even_of_its_own_job(stage: Stage, route: Route, change: dict[str, Any]) -> None:
    request = _request(stage, route)
    assert request.body is not None
    request.body["attempt"] |= change
    before = stage.api.rows()
    assert request.send(stage.api, f"Bearer {stage.attempt.token}").status_code in REFUSED
    assert stage.api.rows() == before


def test_discards_of_another_job_are_not_confirmed_by_naming_ones_own_attempt(stage: Stage) -> None:
    victim = stage.api.attempt(job="another job", uid=UID)
    for _ in range(3):
        stage.api.complete(victim)
    stage.api.attempt(job="another job", uid=UID)
    body = {"job_id": victim.job_id, "checkpoint_ids": [1], "attempt": stage.attempt.ref}
    before = stage.api.services.coordinator.describe(JobId(victim.job_id)).checkpoints
    accepted(stage.api.post("confirm-discards", stage.attempt.token, body))
    assert stage.api.services.coordinator.describe(JobId(victim.job_id)).checkpoints == before


def test_discards_without_an_attempt_are_not_confirmed(stage: Stage) -> None:
    assert stage.api.post("confirm-discards", stage.attempt.token, {"checkpoint_ids": [1]}).status_code == 422


def test_the_reply_tells_a_missing_token_from_an_unknown_one(api: ApiServer) -> None:
    missing, unknown = api.call("GET", "/v1/jobs"), api.call("GET", "/v1/jobs", "null")
    assert "found none" in missing.json()["message"]
    assert "found an unknown one" in unknown.json()["message"]
