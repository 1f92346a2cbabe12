"""Tokens for users of Airflow, and the pages, through Airflow's own app with its own users."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.maintenance.recover import JobRecovery, RecoverJob
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.token_store import Caller
from airflow_provider_statecheck.testing.messages import make_owner, make_registration
from tests.unit.api.airflow_rows import SECRET, RunningTask
from tests.unit.api.server import accepted, registration

USERS = {"the-editor": "user", "the-viewer": "viewer"}
CALLER = Caller(dag_id="nightly", run_id="run-1", task_id="features")
PUBLIC = {("GET", "/v1/health"), ("POST", "/v1/token")}


def recover(engine: Engine, name: str) -> None:
    """Make the rows of a job as they are after a recovery."""
    JobRecovery(SqlJobStore(engine)).recover(
        RecoverJob(
            job_id=job_id_of(name),
            name=name,
            storage_base="memory://base",
            highest_epoch=1,
            highest_checkpoint_id=1,
            generations={"features": 0},
            snapshots=(),
        )
    )


@pytest.fixture(scope="module")
def engine(airflow_db: Path) -> Engine:
    from airflow import settings

    engine: Engine = settings.get_engine()
    assert str(airflow_db) in str(engine.url), "a test must never write to somebody's database"
    return engine


@pytest.fixture(scope="module")
def airflow(engine: Engine, airflow_db: Path) -> Iterator[TestClient]:
    """Airflow's api-server in this process; its providers and plugins are found as they are in a real one."""
    from airflow.api_fastapi.app import create_app, purge_cached_app

    with pytest.MonkeyPatch.context() as patch:
        users = ",".join(f"{name}:{role}" for name, role in USERS.items())
        patch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", users)
        passwords = airflow_db / "passwords.json"
        passwords.write_text(json.dumps({name: f"password of {name}" for name in USERS}))
        patch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE", str(passwords))
        patch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "x" * 64)  # the generated one is short, of which PyJWT warns
        purge_cached_app()
        yield TestClient(create_app(apps="core"), raise_server_exceptions=False)
        purge_cached_app()


@pytest.fixture
def log_in(airflow: TestClient) -> Any:
    def log_in(name: str) -> str:
        reply = airflow.post("/auth/token", json={"username": name, "password": f"password of {name}"})
        assert reply.status_code == 201, reply.text
        return str(reply.json()["access_token"])

    return log_in


def _ask(airflow: TestClient, user: str | None, caller: Caller = CALLER) -> Any:
    headers = {} if user is None else {"Authorization": f"Bearer {user}"}
    return airflow.post("/statecheck/v1/token/login", json=asdict(caller), headers=headers)


def _tokens_kept(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.exec_driver_sql("SELECT count(*) FROM statecheck_token").scalar_one())


def test_a_user_who_may_edit_task_instances_gets_the_token_of_a_task(airflow: TestClient, log_in: Any) -> None:
    token = accepted(_ask(airflow, log_in("the-editor")))["token"]
    message = registration(job="a job of the login test")
    headers = {"Authorization": f"Bearer {token}"}
    grant = accepted(airflow.post("/statecheck/v1/attempts/register", json=message, headers=headers))
    assert grant["attempt"]["epoch"] >= 1
    message["owner"]["logical_task"] = "nightly/report"
    assert airflow.post("/statecheck/v1/attempts/register", json=message, headers=headers).status_code == 403


def test_one_who_may_only_look_gets_none(airflow: TestClient, engine: Engine, log_in: Any) -> None:
    before = _tokens_kept(engine)
    reply = _ask(airflow, log_in("the-viewer"))
    assert (reply.status_code, reply.json()["code"]) == (403, "access_denied")
    assert _tokens_kept(engine) == before


@pytest.mark.parametrize("user", [None, "", "forged", "a.b.c"])
def test_nobody_else_gets_one(airflow: TestClient, engine: Engine, user: str | None) -> None:
    before = _tokens_kept(engine)
    assert _ask(airflow, user).status_code in (401, 403)
    assert _tokens_kept(engine) == before


def test_a_token_of_this_api_is_no_user(airflow: TestClient, log_in: Any) -> None:
    token = accepted(_ask(airflow, log_in("the-editor")))["token"]
    assert _ask(airflow, token).status_code in (401, 403)
    headers = {"Authorization": f"Bearer {token}"}
    assert airflow.get("/api/v2/dags", headers=headers).status_code in (401, 403)


def test_a_user_is_no_token_of_this_api(airflow: TestClient, log_in: Any) -> None:
    headers = {"Authorization": f"Bearer {log_in('the-editor')}"}
    assert airflow.get("/statecheck/v1/jobs", headers=headers).status_code == 403


def test_the_exchange_works_where_airflow_serves_it(airflow: TestClient, engine: Engine) -> None:
    task = RunningTask.start(engine)
    task.announce()
    proof = {"ti_id": str(task.ti_id), "secret": SECRET}
    token = accepted(airflow.post("/statecheck/v1/token", json=proof))["token"]
    accepted(airflow.get("/statecheck/v1/jobs", headers={"Authorization": f"Bearer {token}"}))
    assert airflow.post("/statecheck/v1/token", json=proof).status_code == 403


def test_every_route_but_the_public_ones_refuses_nobody_in_particular(airflow: TestClient, log_in: Any) -> None:
    user = {"Authorization": f"Bearer {log_in('the-viewer')}"}
    paths = accepted(airflow.get("/statecheck/openapi.json", headers=user))["paths"]
    for path, verbs in paths.items():
        for verb, operation in verbs.items():
            if (verb.upper(), path) in PUBLIC:
                continue
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("examples")
            example = next(iter(body.values()))["value"] if body else None
            place = path.format(job_id="0" * 32, operator_id="0" * 32, checkpoint_id=1)
            reply = airflow.request(verb, f"/statecheck{place}", json=example)
            assert reply.status_code in (401, 403), f"{verb} {path}: {reply.text}"
            assert operation["description"]


def test_a_request_without_a_token_is_told_so_through_airflows_middleware(airflow: TestClient, log_in: Any) -> None:
    found: dict[str, str] = {"Cookie": f"_token={log_in('the-editor')}"}
    for headers in ({}, found, {"Authorization": "Basic eDp5"}, {"Authorization": "Bearer "}):
        reply = airflow.get("/statecheck/v1/jobs", headers=headers)
        assert reply.status_code == 403
        assert "found none" in reply.json()["message"]


class TestPages:
    @pytest.fixture
    def page(self, engine: Engine) -> str:
        coordinates = (("dag_id", "nightly"), ("run_id", "run-1"), ("task_id", "features"), ("map_index", "-1"))
        name = "nightly/2026-05-05"
        coordinator = AttemptCoordinator(SqlJobStore(engine))
        coordinator.register(make_registration(job_name=name, owner=make_owner(airflow=coordinates)))
        return f"/statecheck/jobs/{job_id_of(name)}"

    @pytest.mark.parametrize("user", sorted(USERS))
    def test_whoever_may_read_the_dag_sees_its_jobs(
        self, airflow: TestClient, log_in: Any, page: str, user: str
    ) -> None:
        reply = airflow.get(page, headers={"Authorization": f"Bearer {log_in(user)}"})
        assert reply.status_code == 200
        assert "nightly/2026-05-05" in reply.text

    def test_it_may_be_framed_by_airflow_and_loads_its_own_style_alone(
        self, airflow: TestClient, log_in: Any, page: str
    ) -> None:
        reply = airflow.get(page, headers={"Authorization": f"Bearer {log_in('the-viewer')}"})
        policy = dict(each.split(" ", 1) for each in reply.headers["Content-Security-Policy"].split("; "))
        style = reply.text.partition("<style>")[2].partition("</style>")[0]
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        assert policy.pop("style-src") == f"'sha256-{digest}'"
        assert policy == {
            "default-src": "'none'",
            "base-uri": "'none'",
            "form-action": "'none'",
            "frame-ancestors": "'self'",
        }
        assert "style=" not in reply.text, "the policy would not let it"

    @pytest.mark.parametrize("path", ["/statecheck/v1/health", "/statecheck/v1/jobs", "/statecheck/nowhere"])
    def test_every_reply_says_how_far_a_browser_may_trust_it(self, airflow: TestClient, path: str) -> None:
        headers = airflow.get(path).headers
        assert "frame-ancestors 'self'" in headers["Content-Security-Policy"]
        assert headers["X-Frame-Options"] == "SAMEORIGIN"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "same-origin"
        assert headers["Cache-Control"] == "no-store"

    @pytest.mark.parametrize("path", ["openapi.json", "docs", "redoc"])
    def test_the_description_is_for_users_alone(self, airflow: TestClient, log_in: Any, path: str) -> None:
        assert airflow.get(f"/statecheck/{path}").status_code in (401, 404)
        assert airflow.get("/statecheck/openapi.json", headers={"Authorization": "Bearer forged"}).status_code in (
            401,
            403,
        )
        described = airflow.get("/statecheck/openapi.json", headers={"Authorization": f"Bearer {log_in('the-viewer')}"})
        assert "/v1/token" in accepted(described)["paths"]

    @pytest.mark.parametrize("user", sorted(USERS))
    def test_a_recovered_job_is_shown_to_nobody(
        self, airflow: TestClient, engine: Engine, log_in: Any, user: str
    ) -> None:
        """Its rows name no Dag, and its name may be anybody's."""
        job = f"nightly/2026-06-06 of {user}"
        recover(engine, job)
        path = f"/statecheck/jobs/{job_id_of(job)}"
        reply = airflow.get(path, headers={"Authorization": f"Bearer {log_in(user)}"})
        assert (reply.status_code, reply.json()["code"]) == (403, "access_denied")
        assert "2026-06-06" not in reply.text

    def test_nobody_else_does(self, airflow: TestClient, page: str) -> None:
        for headers in ({}, {"Authorization": "Bearer forged"}):
            reply = airflow.get(page, headers=headers)
            assert reply.status_code in (401, 403)
            assert "nightly" not in reply.text

    def test_one_who_may_not_read_the_dag_does_not(
        self, airflow: TestClient, log_in: Any, page: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

        monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", lambda *_, **__: False)
        reply = airflow.get(page, headers={"Authorization": f"Bearer {log_in('the-viewer')}"})
        assert reply.status_code == 403
        assert "2026-05-05" not in reply.text
