"""Tokens for users of Airflow, and the pages, through Airflow's own app with its own users."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from cryptography.fernet import Fernet
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlalchemy.exc import NoResultFound
from starlette.responses import PlainTextResponse

from airflow_provider_statecheck.api import airflow_access
from airflow_provider_statecheck.api.proof_guard import ProofGuard
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key
from airflow_provider_statecheck.gateway.verbs import CHALLENGE_KEY, challenge_of
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.tables import Caller
from airflow_provider_statecheck.queryable.answers import decode_reply
from airflow_provider_statecheck.state.descriptors import ValueStateDescriptor
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.conformance.test_statement_counts import counted
from tests.contracts.queried_stage import QueriedStage
from tests.messages import complete_checkpoint, make_owner, make_registration
from tests.unit.api.action_page import EDITOR, USERS, VIEWER, Permit
from tests.unit.api.airflow_rows import SECRET, RunningTask, add_dag, remove_dag
from tests.unit.api.served_stage import refused
from tests.unit.api.server import accepted, recover, registration
from tests.written_state import BACKENDS, StatefulJob

CALLER = Caller(dag_id="nightly", run_id="run-1", task_id="features")
PUBLIC = {("GET", "/v1/health"), ("POST", "/v1/token")}


def _ask(airflow: TestClient, user: str | None, caller: Caller = CALLER) -> Any:
    headers = {} if user is None else {"Authorization": f"Bearer {user}"}
    place = {name: getattr(caller, name) for name in ("dag_id", "run_id", "task_id", "map_index")}
    return airflow.post("/statecheck/v1/token/login", json=place, headers=headers)


def _running(engine: Engine, **changes: Any) -> Caller:
    """Start a task and return its coordinates."""
    task = RunningTask.start(engine, **changes)
    return Caller(dag_id=task.dag_id, run_id=task.run_id, task_id="features")


def _tokens_kept(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.exec_driver_sql("SELECT count(*) FROM statecheck_token").scalar_one())


def test_a_user_who_may_edit_task_instances_gets_the_token_of_a_task(
    airflow: TestClient, engine: Engine, tokens: dict[str, str]
) -> None:
    caller = _running(engine)
    token = accepted(_ask(airflow, tokens[EDITOR], caller))["token"]
    message = registration(job="a job of the login test", caller=caller)
    headers = {"Authorization": f"Bearer {token}"}
    grant = accepted(airflow.post("/statecheck/v1/attempts/register", json=message, headers=headers))
    assert grant["attempt"]["epoch"] >= 1
    message["owner"]["logical_task"] = "nightly/report"
    assert airflow.post("/statecheck/v1/attempts/register", json=message, headers=headers).status_code == 403


@pytest.mark.parametrize("state", ["success", "failed", "queued", "deferred", "up_for_retry"])
def test_a_task_that_does_not_run_has_no_token(
    airflow: TestClient, engine: Engine, tokens: dict[str, str], state: str
) -> None:
    before = _tokens_kept(engine)
    for caller in (_running(engine, state=state), replace(_running(engine), run_id="no such run"), CALLER):
        reply = _ask(airflow, tokens[EDITOR], caller)
        assert (reply.status_code, reply.json()["code"]) == (403, "access_denied")
        assert "Expected a running instance" in reply.json()["message"]
    assert _tokens_kept(engine) == before


@pytest.mark.parametrize("dag_id", ["", "nightly"])
def test_the_permission_is_that_on_the_dag_of_the_task(
    airflow: TestClient, engine: Engine, tokens: dict[str, str], permit: Permit, dag_id: str
) -> None:
    """An auth manager that is asked about no Dag decides about Dags in general."""
    caller = replace(_running(engine), dag_id=dag_id)
    permit(lambda *, details, **_: not details.id or details.id == "another")
    assert _ask(airflow, tokens[EDITOR], caller).status_code == 403


def _permit_editing(permit: Permit, *dag_ids: str) -> None:
    permit(lambda *, method, details, **_: method == "GET" or details.id in dag_ids)


def test_a_token_of_a_user_ends_with_the_permission_of_the_user(
    airflow: TestClient, engine: Engine, tokens: dict[str, str], permit: Permit
) -> None:
    caller = _running(engine)
    bound, free = (accepted(_ask(airflow, tokens[EDITOR], caller))["token"] for _ in range(2))
    message = registration(job=f"job of {caller.run_id}", caller=caller)
    of_attempt = {"Authorization": f"Bearer {bound}"}
    grant = accepted(airflow.post("/statecheck/v1/attempts/register", json=message, headers=of_attempt))
    trigger = {"attempt": grant["attempt"], "request_key": new_key()}
    accepted(airflow.post("/statecheck/v1/attempts/trigger", json=trigger, headers=of_attempt))
    _permit_editing(permit, "another")
    for headers in (of_attempt, {"Authorization": f"Bearer {free}"}):
        assert airflow.post("/statecheck/v1/attempts/trigger", json=trigger, headers=headers).status_code == 403
        assert airflow.get("/statecheck/v1/jobs", headers=headers).status_code == 403
    _permit_editing(permit, "nightly")
    accepted(airflow.post("/statecheck/v1/attempts/trigger", json=trigger, headers=of_attempt))


def test_a_token_of_a_user_whom_airflow_does_not_know_any_more_is_refused(
    airflow: TestClient, engine: Engine, tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = {"Authorization": f"Bearer {accepted(_ask(airflow, tokens[EDITOR], _running(engine)))['token']}"}
    accepted(airflow.get("/statecheck/v1/jobs", headers=token))

    def unknown(*_: object, **__: object) -> None:
        raise NoResultFound

    for name in ("deserialize_user", "refresh_user"):
        with monkeypatch.context() as patch:
            patch.setattr(SimpleAuthManager, name, unknown)
            reply = airflow.get("/statecheck/v1/jobs", headers=token)
            assert (reply.status_code, reply.json()["code"]) == (403, "access_denied")


def test_a_user_is_kept_encrypted_and_without_the_token_of_the_login(
    airflow: TestClient, engine: Engine, tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fernet = Fernet(Fernet.generate_key())
    monkeypatch.setattr(airflow_access, "get_fernet", lambda: fernet)
    token = accepted(_ask(airflow, tokens[EDITOR], _running(engine)))["token"]
    accepted(airflow.get("/statecheck/v1/jobs", headers={"Authorization": f"Bearer {token}"}))
    with engine.connect() as connection:
        newest = "SELECT caller FROM statecheck_token ORDER BY created_at DESC LIMIT 1"
        kept = str(connection.exec_driver_sql(newest).scalar_one())
    assert "login" in kept
    assert EDITOR not in kept
    assert tokens[EDITOR] not in kept


def _all_dags(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.exec_driver_sql("SELECT dag_id FROM dag").scalars())


class TestRecoveredJob:
    """After a recovery, the Dags of a job are unknown until its tasks run again."""

    @pytest.mark.parametrize(
        ("job", "dags", "status"),
        [
            ("recovered job", ("nightly",), 403),
            ("recovered job", (), 200),
            ("nightly/recovered", ("nightly",), 200),
        ],
        ids=["of any Dag", "of any Dag, for a user who may edit all", "named after the Dag"],
    )
    def test_a_task_of_a_user_resumes_it_if_it_can_belong_to_no_other(
        self,
        airflow: TestClient,
        engine: Engine,
        tokens: dict[str, str],
        permit: Permit,
        job: str,
        dags: Any,
        status: int,
    ) -> None:
        for dag_id in ("nightly", "hourly"):
            add_dag(engine, dag_id)
        name = f"{job} of {new_key()}"
        recover(SqlJobStore(engine), name, "features")
        _permit_editing(permit, *(dags or _all_dags(engine)))
        caller = _running(engine)
        headers = {"Authorization": f"Bearer {accepted(_ask(airflow, tokens[EDITOR], caller))['token']}"}
        message = registration(job=name, caller=caller, restore_from=None)
        reply = airflow.post("/statecheck/v1/attempts/register", json=message, headers=headers)
        for dag_id in ("nightly", "hourly"):
            remove_dag(engine, dag_id)
        assert reply.status_code == status, reply.text


def test_one_who_may_only_look_gets_none(airflow: TestClient, engine: Engine, tokens: dict[str, str]) -> None:
    before = _tokens_kept(engine)
    reply = _ask(airflow, tokens[VIEWER])
    assert (reply.status_code, reply.json()["code"]) == (403, "access_denied")
    assert _tokens_kept(engine) == before


@pytest.mark.parametrize("user", [None, "", "forged", "a.b.c"])
def test_nobody_else_gets_one(airflow: TestClient, engine: Engine, user: str | None) -> None:
    before = _tokens_kept(engine)
    assert _ask(airflow, user).status_code in (401, 403)
    assert _tokens_kept(engine) == before


def test_a_token_of_this_api_is_no_user(airflow: TestClient, engine: Engine, tokens: dict[str, str]) -> None:
    token = accepted(_ask(airflow, tokens[EDITOR], _running(engine)))["token"]
    assert _ask(airflow, token).status_code in (401, 403)
    headers = {"Authorization": f"Bearer {token}"}
    assert airflow.get("/api/v2/dags", headers=headers).status_code in (401, 403)


def test_a_user_is_no_token_of_this_api(airflow: TestClient, tokens: dict[str, str]) -> None:
    headers = {"Authorization": f"Bearer {tokens[EDITOR]}"}
    assert airflow.get("/statecheck/v1/jobs", headers=headers).status_code == 403


def test_the_exchange_works_where_airflow_serves_it(airflow: TestClient, engine: Engine) -> None:
    task = RunningTask.start(engine)
    task.announce()
    proof = {"ti_id": str(task.ti_id), "secret": SECRET}
    token = accepted(airflow.post("/statecheck/v1/token", json=proof))["token"]
    accepted(airflow.get("/statecheck/v1/jobs", headers={"Authorization": f"Bearer {token}"}))
    assert airflow.post("/statecheck/v1/token", json=proof).status_code == 403


class TestProofs:
    """A user who may edit a task instance must not act as the task, which would have more rights than the user."""

    @staticmethod
    def _write(airflow: TestClient, token: str, task: RunningTask, key: str, method: str = "PUT") -> Any:
        place = f"dags/{task.dag_id}/dagRuns/{task.run_id}/taskInstances/features/state-store/{key}"
        body, headers = {"value": challenge_of(SECRET)}, {"Authorization": f"Bearer {token}"}
        return airflow.request(method, f"/api/v2/{place}", json=body, headers=headers)

    @pytest.mark.parametrize("method", ["PUT", "PATCH"])
    @pytest.mark.parametrize("key", [CHALLENGE_KEY, "statecheck%2Echallenge", "Statecheck.CHALLENGE", "statecheck.x"])
    def test_a_user_cannot_write_the_proof_of_a_task(
        self, airflow: TestClient, engine: Engine, tokens: dict[str, str], method: str, key: str
    ) -> None:
        task = RunningTask.start(engine)
        task.announce('"what the task has written"')
        reply = self._write(airflow, tokens[EDITOR], task, key, method)
        assert (reply.status_code, "only the task itself" in reply.text) == (403, True)
        proof = {"ti_id": str(task.ti_id), "secret": SECRET}
        assert airflow.post("/statecheck/v1/token", json=proof).status_code == 403

    @pytest.mark.parametrize(
        "path",
        [
            f"/execution/task-state-store/01990b5e-3f7a-7c3c-8a43-6a2f0e3a9d11/{CHALLENGE_KEY}",
            f"/statecheck/state-store/{CHALLENGE_KEY}",
            "/api/v2/dags/d/dagRuns/r/taskInstances/t/state-store/",
        ],
    )
    def test_the_task_itself_and_other_apps_are_not_hindered(self, path: str) -> None:
        client = TestClient(ProofGuard(PlainTextResponse("forwarded")))
        assert client.put(path).text == "forwarded"

    @pytest.mark.parametrize("root", ["", "/airflow"])
    def test_a_proof_is_guarded_below_any_root_and_may_be_deleted(self, root: str) -> None:
        client = TestClient(ProofGuard(PlainTextResponse("forwarded")))
        path = f"{root}/api/v2/dags/d/dagRuns/r/taskInstances/t/state-store/{CHALLENGE_KEY}"
        assert [client.request(method, path).status_code for method in ("PUT", "PATCH", "POST")] == [403] * 3
        assert client.delete(path).text == "forwarded"

    def test_a_user_writes_other_keys(self, airflow: TestClient, engine: Engine, tokens: dict[str, str]) -> None:
        for key in ("mine", "a/statecheck.challenge", "statecheck"):
            reply = self._write(airflow, tokens[EDITOR], RunningTask.start(engine), key)
            assert reply.status_code == 204, reply.text


def test_every_route_but_the_public_ones_refuses_nobody_in_particular(
    airflow: TestClient, tokens: dict[str, str]
) -> None:
    user = {"Authorization": f"Bearer {tokens[VIEWER]}"}
    paths = accepted(airflow.get("/statecheck/openapi.json", headers=user))["paths"]
    for path, verbs in paths.items():
        for verb, operation in verbs.items():
            if (verb.upper(), path) in PUBLIC:
                continue
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("examples")
            example = next(iter(body.values()))["value"] if body else None
            place = path.format(
                job_id="0" * 32,
                operator_id="0" * 32,
                checkpoint_id=1,
                name="totals",
                action="rewind",
                dag_id="nightly",
                run_id="run-1",
                task_id="features",
            )
            reply = airflow.request(verb, f"/statecheck{place}", json=example)
            assert reply.status_code in (401, 403), f"{verb} {path}: {reply.text}"
            assert operation["description"]


def test_a_request_without_a_token_is_told_so_through_airflows_middleware(
    airflow: TestClient, tokens: dict[str, str]
) -> None:
    found: dict[str, str] = {"Cookie": f"_token={tokens[EDITOR]}"}
    for headers in ({}, found, {"Authorization": "Basic eDp5"}, {"Authorization": "Bearer "}):
        reply = airflow.get("/statecheck/v1/jobs", headers=headers)
        assert reply.status_code == 403
        assert "found none" in reply.json()["message"]


class TestJobList:
    """The jobs ``list/…`` of three Dags; ``private`` is one that the user may not read."""

    @pytest.fixture(autouse=True)
    def _jobs(self, engine: Engine, permit: Permit) -> None:
        dags = {"list/mine": ("nightly",), "list/both": ("nightly", "private"), "list/theirs": ("private",)}
        coordinator = AttemptCoordinator(SqlJobStore(engine))
        for name, dag_ids in dags.items():
            for dag_id in dag_ids:
                owner = make_owner(logical_task=f"{dag_id}/t", airflow=(("dag_id", dag_id),))
                attempt = coordinator.register(make_registration(job_name=name, uid=dag_id, owner=owner)).attempt
                complete_checkpoint(coordinator, attempt, full_size_bytes=100)
        permit(lambda *, details, **_: details.id != "private")

    @staticmethod
    def ask(airflow: TestClient, token: str, **query: Any) -> Any:
        headers = {"Authorization": f"Bearer {token}"}
        return airflow.get("/statecheck/v1/job-list", params={"contains": "LIST/"} | query, headers=headers)

    def test_a_user_gets_only_jobs_all_of_whose_dags_are_readable(
        self, airflow: TestClient, tokens: dict[str, str]
    ) -> None:
        listed = accepted(self.ask(airflow, tokens[VIEWER]))
        [overview] = listed["jobs"]
        assert (overview["name"], overview["dag_ids"], overview["full_size_bytes"]) == ("list/mine", ["nightly"], 100)
        assert (listed["counts"], listed["following"]) == ({"running": 1}, None)
        hidden = accepted(self.ask(airflow, tokens[VIEWER], dag_id="private"))
        assert hidden == {"jobs": [], "counts": {}, "following": None}

    def test_one_who_may_read_all_dags_follows_the_pages(
        self, airflow: TestClient, tokens: dict[str, str], permit: Permit
    ) -> None:
        permit(lambda **_: True)
        query = {"limit": 2, "sort": "name", "descending": True}
        first = accepted(self.ask(airflow, tokens[VIEWER], **query))
        second = accepted(self.ask(airflow, tokens[VIEWER], after=first["following"], **query))
        found = [overview["name"] for page in (first, second) for overview in page["jobs"]]
        assert found == ["list/theirs", "list/mine", "list/both"]
        assert (first["counts"], second["following"]) == ({"running": 3}, None)

    @pytest.mark.parametrize("query", [{}, {"dag_id": "many-00"}])
    def test_it_takes_as_many_statements_for_many_dags_as_for_few(
        self, airflow: TestClient, engine: Engine, tokens: dict[str, str], query: dict[str, Any]
    ) -> None:
        from airflow.models.dag import clear_team_name_cache

        token, taken = tokens[VIEWER], list[int]()
        for numbers in (range(2), range(2, 30)):
            self._work_of_many_dags(AttemptCoordinator(SqlJobStore(engine)), numbers)
            clear_team_name_cache()
            with counted(engine) as statements:
                assert accepted(self.ask(airflow, token, contains="many/", **query))["jobs"]
            taken.append(len(statements))
            assert sum("team.name" in statement for statement in statements) == 1
        assert taken[0] == taken[1]

    @staticmethod
    def _work_of_many_dags(coordinator: AttemptCoordinator, numbers: range) -> None:
        for dag_id in (f"many-{number:02}" for number in numbers):
            owner = make_owner(logical_task=f"{dag_id}/t", airflow=(("dag_id", dag_id),))
            coordinator.register(make_registration(job_name="many/dags", uid=dag_id, owner=owner))

    @pytest.mark.parametrize(
        "query", [{"limit": 0}, {"limit": 1001}, {"sort": "age"}, {"status": "x"}, {"after": "x"}, {"dag_id": "a\0"}]
    )
    def test_a_wrong_parameter_is_refused(
        self, airflow: TestClient, tokens: dict[str, str], query: dict[str, Any]
    ) -> None:
        assert self.ask(airflow, tokens[VIEWER], **query).status_code in (400, 422)

    def test_the_description_shows_an_example(self, airflow: TestClient, tokens: dict[str, str]) -> None:
        headers = {"Authorization": f"Bearer {tokens[VIEWER]}"}
        described = accepted(airflow.get("/statecheck/openapi.json", headers=headers))
        reply = described["paths"]["/v1/job-list"]["get"]["responses"]["200"]["content"]["application/json"]
        assert reply["examples"]["normal"]["value"]["counts"] == {"running": 1, "finished": 30}
        assert reply["schema"] == {"$ref": "#/components/schemas/JobList"}


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
        self, airflow: TestClient, tokens: dict[str, str], page: str, user: str
    ) -> None:
        reply = airflow.get(page, headers={"Authorization": f"Bearer {tokens[user]}"})
        assert reply.status_code == 200
        assert "nightly/2026-05-05" in reply.text

    def test_it_is_a_page_of_airflows_ui_with_files_that_need_no_login(
        self, airflow: TestClient, tokens: dict[str, str], page: str
    ) -> None:
        user = {"Authorization": f"Bearer {tokens[VIEWER]}"}
        reply = airflow.get(page, headers=user)
        assert "script-src 'self'" in reply.headers["Content-Security-Policy"]
        for name in ("pages.css", "pages.js", "theme.js", "checkpoints.svg"):
            assert airflow.get(f"/statecheck/static/{name}").status_code == 200
        (plugin,) = [
            p for p in airflow.get("/api/v2/plugins", headers=user).json()["plugins"] if p["name"] == "statecheck"
        ]
        views = {view["destination"]: view["url_route"] for view in plugin["external_views"]}
        assert views.keys() == {"nav", "dag", "dag_run", "task_instance"}

    def test_the_page_of_a_task_is_found_by_its_coordinates(
        self, airflow: TestClient, tokens: dict[str, str], page: str
    ) -> None:
        user = {"Authorization": f"Bearer {tokens[VIEWER]}"}
        reply = airflow.get("/statecheck/dags/nightly/runs/run-1/tasks/features", headers=user)
        assert reply.status_code == 200
        assert page in reply.text
        assert page in airflow.get("/statecheck/dags/nightly/runs/run-1", headers=user).text
        assert page in airflow.get("/statecheck/jobs", headers=user).text

    @pytest.mark.parametrize("path", ["/statecheck/v1/health", "/statecheck/v1/jobs", "/statecheck/nowhere"])
    def test_every_reply_says_how_far_a_browser_may_trust_it(self, airflow: TestClient, path: str) -> None:
        headers = airflow.get(path).headers
        assert "frame-ancestors 'self'" in headers["Content-Security-Policy"]
        assert headers["X-Frame-Options"] == "SAMEORIGIN"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "same-origin"
        assert headers["Cache-Control"] == "no-store"

    @pytest.mark.parametrize("path", ["openapi.json", "docs", "redoc"])
    def test_the_description_is_for_users_alone(self, airflow: TestClient, tokens: dict[str, str], path: str) -> None:
        assert airflow.get(f"/statecheck/{path}").status_code in (401, 404)
        assert airflow.get("/statecheck/openapi.json", headers={"Authorization": "Bearer forged"}).status_code in (
            401,
            403,
        )
        described = airflow.get("/statecheck/openapi.json", headers={"Authorization": f"Bearer {tokens[VIEWER]}"})
        assert "/v1/token" in accepted(described)["paths"]

    @pytest.mark.parametrize("user", sorted(USERS))
    def test_a_recovered_job_is_shown_to_nobody(
        self, airflow: TestClient, engine: Engine, tokens: dict[str, str], user: str
    ) -> None:
        """Its rows name no Dag, and its name may be anybody's."""
        job = f"nightly/2026-06-06 of {user}"
        recover(SqlJobStore(engine), job, "features")
        path = f"/statecheck/jobs/{job_id_of(job)}"
        reply = airflow.get(path, headers={"Authorization": f"Bearer {tokens[user]}"})
        assert reply.status_code == 404
        assert "2026-06-06" not in reply.text

    def test_nobody_else_does(self, airflow: TestClient, page: str) -> None:
        for headers in ({}, {"Authorization": "Bearer forged"}):
            reply = airflow.get(page, headers=headers)
            assert reply.status_code in (401, 403)
            assert "Log in to Airflow" in reply.text
            assert "nightly" not in reply.text

    def test_one_who_may_not_read_the_dag_does_not(
        self, airflow: TestClient, tokens: dict[str, str], page: str, permit: Permit
    ) -> None:
        permit(lambda *_, **__: False)
        reply = airflow.get(page, headers={"Authorization": f"Bearer {tokens[VIEWER]}"})
        assert reply.status_code == 404
        assert "2026-05-05" not in reply.text


@pytest.fixture(scope="module")
def stage(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueriedStage]:
    storage = CheckpointStorage.open(tmp_path_factory.mktemp("checkpoints").as_uri())
    descriptors = [ValueStateDescriptor("balance", int, queryable_name="balances")]
    written = StatefulJob(storage, BACKENDS["arrow"](), descriptors, job_name="nightly/2026-07-07")
    stage = QueriedStage(SqlJobStore(engine), (written,))
    coordinates = (("dag_id", "nightly"), ("run_id", "run-1"), ("task_id", "features"), ("map_index", "-1"))
    stage.begin(owner=make_owner(airflow=coordinates))
    stage.put("balance", {"ann": 5})
    stage.checkpoint()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__STATECHECK__CHECKPOINT_DIR", storage.base_uri)
        yield stage
    stage.close()


class TestState:
    """Queryable state for Airflow users, and read tokens that they request for clients."""

    @staticmethod
    def _read(airflow: TestClient, stage: QueriedStage, **sent: Any) -> Any:
        return airflow.get(f"/statecheck/v1/jobs/{stage.job_id}/state/balances?key=ann", **sent)

    def test_user_who_may_read_the_dag_reads_its_state(
        self, airflow: TestClient, tokens: dict[str, str], stage: QueriedStage
    ) -> None:
        user = tokens[VIEWER]
        for sent in ({"headers": {"Authorization": f"Bearer {user}"}}, {"headers": {"Cookie": f"_token={user}"}}):
            assert decode_reply(accepted(self._read(airflow, stage, **sent))).values == (5,)

    def test_token_for_a_client_reads_the_state_of_its_job_and_nothing_else(
        self, airflow: TestClient, tokens: dict[str, str], stage: QueriedStage
    ) -> None:
        body = {"job_id": stage.job_id, "lifetime_seconds": 60.0}
        user = {"Authorization": f"Bearer {tokens[VIEWER]}"}
        token = accepted(airflow.post("/statecheck/v1/token/state", json=body, headers=user))["token"]
        client = {"Authorization": f"Bearer {token}"}
        assert decode_reply(accepted(self._read(airflow, stage, headers=client))).values == (5,)
        other = f"/statecheck/v1/jobs/{job_id_of('another job')}/state"
        assert airflow.get(other, headers=client).status_code == 403
        for path in ("token/read", "token/renew", "attempts/register"):
            message = {"job_id": stage.job_id} if path == "token/read" else registration()
            assert airflow.post(f"/statecheck/v1/{path}", json=message, headers=client).status_code == 403

    def test_token_reads_nothing_while_its_user_may_not_read_the_dag(
        self, airflow: TestClient, tokens: dict[str, str], stage: QueriedStage, permit: Permit
    ) -> None:
        body, user = {"job_id": stage.job_id}, {"Authorization": f"Bearer {tokens[VIEWER]}"}
        token = accepted(airflow.post("/statecheck/v1/token/state", json=body, headers=user))["token"]
        permit(lambda *_, **__: False)
        reply = self._read(airflow, stage, headers={"Authorization": f"Bearer {token}"})
        assert (reply.status_code, reply.json()["code"]) == (404, "checkpoint_not_found")

    def test_token_of_an_earlier_version_is_valid_until_its_time_is_over(
        self, airflow: TestClient, engine: Engine, tokens: dict[str, str], stage: QueriedStage
    ) -> None:
        """Such a token tells only the name of its user, whom the auth manager cannot be asked about."""
        body, user = {"job_id": stage.job_id}, {"Authorization": f"Bearer {tokens[VIEWER]}"}
        token = accepted(airflow.post("/statecheck/v1/token/state", json=body, headers=user))["token"]
        with engine.begin() as connection:
            connection.exec_driver_sql("UPDATE statecheck_token SET caller = json_remove(caller, '$.login')")
        accepted(self._read(airflow, stage, headers={"Authorization": f"Bearer {token}"}))

    @pytest.mark.parametrize("seconds", [0, -1.0, 24 * 3600 + 1, 1e300])
    def test_token_lives_a_day_at_most(
        self, airflow: TestClient, tokens: dict[str, str], stage: QueriedStage, seconds: float
    ) -> None:
        body = {"job_id": stage.job_id, "lifetime_seconds": seconds}
        user = {"Authorization": f"Bearer {tokens[VIEWER]}"}
        assert airflow.post("/statecheck/v1/token/state", json=body, headers=user).status_code == 400

    def test_a_user_has_a_hundred_at_a_time_and_no_more(
        self, airflow: TestClient, tokens: dict[str, str], stage: QueriedStage
    ) -> None:
        def ask(user: str) -> Any:
            headers = {"Authorization": f"Bearer {tokens[user]}"}
            return airflow.post("/statecheck/v1/token/state", json={"job_id": stage.job_id}, headers=headers)

        replies = [ask(VIEWER) for _ in range(101)]
        assert "fewer than 100 valid" in refused(replies[-1], 403, "access_denied")
        accepted(ask(EDITOR))

    def test_one_who_may_not_read_the_dag_gets_neither_state_nor_token(
        self, airflow: TestClient, tokens: dict[str, str], stage: QueriedStage, permit: Permit
    ) -> None:
        permit(lambda *_, **__: False)
        user = {"Authorization": f"Bearer {tokens[EDITOR]}"}
        replies = [self._replies(airflow, job_id, user) for job_id in (stage.job_id, job_id_of("no job of this name"))]
        assert {(reply.status_code, reply.json()["code"]) for reply in replies[0]} == {(404, "checkpoint_not_found")}
        hidden, missing = ([self._text(reply) for reply in each] for each in replies)
        assert hidden == missing

    @staticmethod
    def _replies(airflow: TestClient, job_id: str, user: dict[str, str]) -> list[Any]:
        job = f"/statecheck/v1/jobs/{job_id}"
        paths = [job, f"{job}/latest", f"{job}/state", f"{job}/state/balances?key=ann", f"{job}/snapshots"]
        token = airflow.post("/statecheck/v1/token/state", json={"job_id": job_id}, headers=user)
        return [*(airflow.get(path, headers=user) for path in paths), token]

    @staticmethod
    def _text(reply: Any) -> str:
        """The text of a reply without the id of the job."""
        return re.sub("[0-9a-f]{32}", "…", reply.text)

    @pytest.mark.parametrize("sent", [{}, {"Authorization": "Bearer a.b.c"}, {"Authorization": "Bearer forged"}])
    def test_nobody_else_reads_state(self, airflow: TestClient, stage: QueriedStage, sent: dict[str, str]) -> None:
        reply = self._read(airflow, stage, headers=sent)
        assert (reply.status_code, reply.json()["code"]) == (403, "access_denied")
