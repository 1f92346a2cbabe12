"""Actions of users on the state of a job, through Airflow's own app with its own users."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from airflow_provider_statecheck.api import action_routes
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import FinishAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.maintenance.actions import requested_actions
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from tests.messages import complete_checkpoint, make_owner, make_registration
from tests.unit.api.action_page import EDITOR, VIEWER, ActionPage, Permit, audit_entries
from tests.unit.api.server import accepted

TASK = {"dag_id": "nightly", "run_id": "run-1", "task_id": "features", "map_index": "-1"}
OPERATOR = operator_id_of("aggregate")


@pytest.fixture
def coordinator(engine: Engine) -> AttemptCoordinator:
    return AttemptCoordinator(SqlJobStore(engine))


@pytest.fixture
def job(coordinator: AttemptCoordinator) -> JobId:
    """A job whose task has failed after two checkpoints."""
    name = f"sales-{new_key()}"
    grant = coordinator.register(make_registration(job_name=name, owner=make_owner(airflow=tuple(TASK.items()))))
    for _ in range(2):
        complete_checkpoint(coordinator, grant.attempt)
    coordinator.finish(FinishAttempt(attempt=grant.attempt, status=AttemptStatus.FAILED))
    return job_id_of(name)


@pytest.fixture
def page(airflow: TestClient, tokens: dict[str, str], job: JobId) -> ActionPage:
    return ActionPage(airflow, tokens[EDITOR], job)


def test_a_choice_is_previewed_confirmed_and_taken_by_the_next_attempt(
    page: ActionPage, coordinator: AttemptCoordinator, job: JobId
) -> None:
    shown = accepted(page.preview("restore", checkpoint_id=1))
    assert [each["checkpoint_id"] for each in shown["recomputed"]] == [2]
    accepted(page.send("restore", checkpoint_id=1))
    (waiting,) = accepted(page.actions())
    assert (waiting["action"], waiting["status"], waiting["requested_by"]) == ("restore", "queued", EDITOR)
    name = coordinator.describe(job).job.name
    grant = coordinator.register(make_registration(job_name=name, owner=make_owner(airflow=tuple(TASK.items()))))
    assert [c.checkpoint_id for c in grant.candidates] == [1]
    assert EDITOR in grant.start_reason
    (done,) = accepted(page.actions())
    assert (done["status"], done["message"]) == ("completed", "attempt 2 restores checkpoint 1")


def test_a_savepoint_and_a_rewind_are_requested(page: ActionPage) -> None:
    accepted(page.send("savepoint", operator_id=OPERATOR))
    assert accepted(page.send("rewind", run_key="2026-01-01"))["status"] == "completed"
    assert [each["action"] for each in accepted(page.actions())] == ["rewind", "savepoint"]


def test_each_accepted_request_is_in_the_audit_log_once(page: ActionPage, engine: Engine, job: JobId) -> None:
    key = new_key()
    first = accepted(page.send("restore", checkpoint_id=1, request_key=key))
    assert accepted(page.send("restore", checkpoint_id=1, request_key=key)) == first
    (entry,) = audit_entries(engine, job)
    assert (entry.event, entry.owner, entry.dag_id, entry.task_id) == (
        "statecheck.restore",
        EDITOR,
        "nightly",
        "features",
    )
    assert (entry.run_id, entry.map_index) == ("run-1", -1)
    written = json.loads(entry.extra)
    assert (written["operator"], written["checkpoint_id"], written["outcome"]) == ("aggregate", 1, "queued")


def test_a_refused_request_changes_nothing_and_is_recorded_as_refused(
    page: ActionPage, engine: Engine, job: JobId
) -> None:
    refused: dict[str, dict[str, Any]] = {
        "restore": {"checkpoint_id": 99},
        "stop": {"operator_id": OPERATOR},
        "withdraw": {"operator_id": OPERATOR},
        "dispose": {"checkpoint_id": 1},
        "savepoint": {"operator_id": "f" * 32},
    }
    for action, message in refused.items():
        reply = page.send(action, **message)
        assert reply.status_code in (404, 409), f"{action}: {reply.text}"
        assert reply.json()["message"].startswith("Expected")
    assert accepted(page.actions()) == []
    written = [(entry.event, json.loads(entry.extra)) for entry in audit_entries(engine, job)]
    assert [event for event, _ in written] == [f"statecheck.{action}" for action in refused]
    for _, extra in written:
        assert extra["outcome"] == "refused"
        assert extra["reason"].startswith("Expected")


@pytest.mark.parametrize("key", ["", "x", "F" * 32])
def test_a_key_of_another_form_is_refused_before_anything_is_recorded(
    page: ActionPage, engine: Engine, job: JobId, key: str
) -> None:
    assert page.send("restore", checkpoint_id=1, request_key=key).status_code == 400
    assert audit_entries(engine, job) == []


def test_a_copy_that_comes_while_the_first_is_carried_out_gets_its_result(
    page: ActionPage, engine: Engine, job: JobId, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = new_key()
    accepted(page.send("restore", checkpoint_id=1))
    first = accepted(page.send("withdraw", operator_id=OPERATOR, request_key=key))
    found = requested_actions
    reads = iter([lambda view: ()])
    # The copy reads the job before the first one is committed, and previews the action after it.
    monkeypatch.setattr(action_routes, "requested_actions", lambda view: next(reads, found)(view))
    assert accepted(page.send("withdraw", operator_id=OPERATOR, request_key=key)) == first
    written = [json.loads(entry.extra) for entry in audit_entries(engine, job)]
    assert [each["outcome"] for each in written] == ["queued", "completed", "completed"]
    assert [each["request_key"] for each in written[1:]] == [key, key]


def test_a_job_is_removed_on_request(page: ActionPage, engine: Engine, job: JobId) -> None:
    accepted(page.preview("prune"))
    asked = accepted(page.send("prune"))
    assert (asked["status"], asked["requested_by"]) == ("queued", EDITOR)
    [waiting] = accepted(page.actions())
    assert waiting == asked
    [entry] = audit_entries(engine, job)
    assert (entry.event, json.loads(entry.extra)["outcome"]) == ("statecheck.prune", "queued")


def test_one_who_may_only_read_sees_the_actions_and_triggers_none(
    airflow: TestClient, tokens: dict[str, str], job: JobId, engine: Engine
) -> None:
    page = ActionPage(airflow, tokens[VIEWER], job)
    assert accepted(page.actions()) == []
    for reply in (page.preview("restore", checkpoint_id=1), page.send("restore", checkpoint_id=1)):
        assert (reply.status_code, reply.json()["code"]) == (403, "access_denied")
    assert accepted(page.actions()) == []
    assert audit_entries(engine, job) == []


def test_to_one_who_may_not_read_it_a_job_does_not_exist(
    airflow: TestClient, tokens: dict[str, str], job: JobId, permit: Permit
) -> None:
    missing = job_id_of("no such job")
    replies = [_all_replies(ActionPage(airflow, tokens[EDITOR], missing))]
    permit(lambda *_, **__: False)
    replies.append(_all_replies(ActionPage(airflow, tokens[EDITOR], job)))
    of_missing, of_hidden = ([(r.status_code, r.text) for r in each] for each in replies)
    assert {status for status, _ in of_hidden} == {404}
    assert of_hidden == [(status, text.replace(missing, job)) for status, text in of_missing]


def _all_replies(page: ActionPage) -> list[Any]:
    return [page.actions(), page.preview("restore", checkpoint_id=1), page.send("restore", checkpoint_id=1)]


def test_every_dag_of_the_job_must_be_editable(
    airflow: TestClient,
    tokens: dict[str, str],
    job: JobId,
    coordinator: AttemptCoordinator,
    permit: Permit,
) -> None:
    other = make_owner(logical_task="hourly/load", airflow=tuple((TASK | {"dag_id": "hourly"}).items()))
    name = coordinator.describe(job).job.name
    coordinator.register(make_registration(job_name=name, uid="load", owner=other))
    permit(lambda *_, method, details, **__: method == "GET" or details.id == "nightly")
    reply = ActionPage(airflow, tokens[EDITOR], job).send("restore", checkpoint_id=1)
    assert (reply.status_code, "hourly" in reply.text) == (403, True)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Statecheck-Action": "savepoint"},
        {"X-Statecheck-Action": "restore", "Sec-Fetch-Site": "cross-site"},
        {"X-Statecheck-Action": "restore", "Sec-Fetch-Site": "same-site"},
        {"X-Statecheck-Action": "restore", "Sec-Fetch-Site": "none"},
        {"X-Statecheck-Action": "restore", "Origin": "https://elsewhere.example"},
        {"X-Statecheck-Action": "restore", "Origin": "null"},
        {"X-Statecheck-Action": "restore", "Origin": "http://testserver.elsewhere.example"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "http://testserver"},
    ],
    ids=lambda headers: ", ".join(headers.values()) or "no header",
)
def test_the_page_of_another_site_triggers_nothing(
    page: ActionPage, engine: Engine, job: JobId, headers: dict[str, str]
) -> None:
    assert page.send("restore", headers, checkpoint_id=1).status_code == 403
    assert accepted(page.actions()) == []
    assert audit_entries(engine, job) == []


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "same-origin", "Origin": "https://seen-by-the-browser.example"},
        {"Origin": "http://testserver"},
        {"Origin": "https://airflow.example:8443"},
        {},
    ],
    ids=["behind a proxy", "plain page", "configured address", "no browser"],
)
def test_a_page_of_this_server_is_heard(
    page: ActionPage, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example:8443/airflow")
    accepted(page.send("restore", {"X-Statecheck-Action": "restore"} | headers, checkpoint_id=1))


def test_a_form_of_another_site_is_not_read(airflow: TestClient, tokens: dict[str, str], job: JobId) -> None:
    """A browser sends a form with the cookies of the user, and without asking this server first."""
    airflow.cookies.set("_token", tokens[EDITOR])
    try:
        for kind in ("text/plain", "application/x-www-form-urlencoded"):
            path = f"/statecheck/ui/jobs/{job}/restore"
            reply = airflow.post(path, content=b'{"checkpoint_id": 1}', headers={"Content-Type": kind})
            assert reply.status_code in (403, 415)
        heard = {"X-Statecheck-Action": "restore", "Origin": "http://testserver"}
        body = {"request_key": new_key(), "checkpoint_id": 1}
        accepted(airflow.post(f"/statecheck/ui/jobs/{job}/restore", json=body, headers=heard))
    finally:
        airflow.cookies.clear()


@pytest.mark.parametrize("action", ["delete", "actions", "Restore"])
def test_an_unknown_action_is_refused(page: ActionPage, action: str) -> None:
    assert page.send(action, checkpoint_id=1).status_code in (404, 405, 422)


def test_names_with_markup_are_text_in_json(page: ActionPage) -> None:
    reply = page.preview("rewind", run_key="<script>alert(1)</script>")
    assert reply.headers["Content-Type"] == "application/json"
    assert reply.headers["X-Content-Type-Options"] == "nosniff"


def test_the_page_of_a_checkpoint_offers_no_fork_of_a_dag_that_airflow_does_not_have(
    airflow: TestClient, tokens: dict[str, str], coordinator: AttemptCoordinator
) -> None:
    name = f"sales-{new_key()}"
    owner = make_owner(airflow=tuple((TASK | {"dag_id": "not-in-airflow"}).items()))
    complete_checkpoint(coordinator, coordinator.register(make_registration(job_name=name, owner=owner)).attempt)
    headers = {"Authorization": f"Bearer {tokens[EDITOR]}"}
    page = airflow.get(f"/statecheck/jobs/{job_id_of(name)}/checkpoints/1", headers=headers)
    assert page.status_code == 200
    assert "<h2>Fork</h2>" not in page.text
    assert "Restore with the next attempt" in page.text
