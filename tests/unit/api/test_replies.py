"""What the API says of itself and of what goes wrong."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError

from airflow_provider_statecheck.api.requests import checked_app
from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.exceptions import (
    HandleExistsError,
    HandleNotFoundError,
    ResourceVersionError,
    StateCheckError,
)
from airflow_provider_statecheck.metadata.tables import METADATA
from tests.unit.api.server import SECRET, ApiServer, accepted, description, registration
from tests.unit.api.stage import Stage

OPERATIONS = [
    (verb.upper(), path, operation)
    for path, verbs in description()["paths"].items()
    for verb, operation in verbs.items()
]
MESSAGES = [each for each in OPERATIONS if "requestBody" in each[2]]
PLACES = {"job_id": "0" * 32, "operator_id": "0" * 32, "checkpoint_id": "1", "name": "totals"}
HIDDEN = "a-secret-in-the-wrong-place"


def _ids(value: Any) -> str | None:
    return value.replace("/v1/", "") if isinstance(value, str) else ""


def _examples(operation: dict[str, Any]) -> list[Any]:
    content = operation["requestBody"]["content"]["application/json"]
    return [each["value"] for each in content["examples"].values()]


def _schema(operation: dict[str, Any]) -> dict[str, Any]:
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    return {**schema, "components": description()["components"]}


class TestDescription:
    @pytest.mark.parametrize(("verb", "path", "operation"), OPERATIONS, ids=_ids)
    def test_every_route_says_what_it_does(self, verb: str, path: str, operation: dict[str, Any]) -> None:
        assert operation["description"]
        assert operation["summary"]
        assert operation["tags"]

    @pytest.mark.parametrize(("verb", "path", "operation"), MESSAGES, ids=_ids)
    def test_every_message_has_an_example_of_its_schema(self, verb: str, path: str, operation: dict[str, Any]) -> None:
        assert _examples(operation)
        for example in _examples(operation):
            jsonschema.Draft202012Validator(_schema(operation)).validate(example)

    @pytest.mark.parametrize(("verb", "path", "operation"), MESSAGES, ids=_ids)
    def test_the_schema_refuses_what_lacks_a_field(self, verb: str, path: str, operation: dict[str, Any]) -> None:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(_schema(operation)).validate({})

    def test_every_place_in_a_path_has_an_example(self) -> None:
        parameters = [each for _, _, operation in OPERATIONS for each in operation.get("parameters", [])]
        assert parameters
        assert all(each["examples"] for each in parameters if each["in"] == "path")

    def test_the_document_names_the_token_that_a_route_wants(self) -> None:
        public = {path for _, path, operation in OPERATIONS if "security" not in operation}
        assert public == {"/v1/health", "/v1/token"}


def _malformed(value: Any) -> Iterator[Any]:
    """Each message in which one value is a secret of the wrong form, and one that is the secret altogether."""
    yield HIDDEN
    yield [HIDDEN]
    if isinstance(value, dict):
        for name, inner in value.items():
            yield {each: other for each, other in value.items() if each != name} | {HIDDEN[:8]: HIDDEN}
            for broken in _malformed(inner):
                if not isinstance(inner, str) or not isinstance(broken, str):
                    yield value | {name: broken}


class TestMalformedMessages:
    @pytest.mark.parametrize(("verb", "path", "operation"), MESSAGES, ids=_ids)
    def test_the_reply_never_shows_what_was_sent(
        self, stage: Stage, verb: str, path: str, operation: dict[str, Any]
    ) -> None:
        token = stage.task_token()
        refused = 0
        for message in _malformed(copy.deepcopy(_examples(operation)[0])):
            response = stage.api.call(verb, path.format(**PLACES), token, message)
            refused += response.status_code == 422
            assert response.status_code < 500
            if response.status_code == 422:
                assert response.json()["code"] == "invalid_configuration"
                assert HIDDEN not in response.text
        assert refused > 2

    @pytest.mark.parametrize("body", ["", "{", "null", "[]", '"text"', "1", HIDDEN, "[" * 10_000])
    def test_what_is_no_message_is_refused_without_being_shown(self, stage: Stage, body: str) -> None:
        headers = {"Authorization": f"Bearer {stage.attempt.token}", "Content-Type": "application/json"}
        for verb, path, _ in MESSAGES:
            place = path.format(job_id=stage.attempt.job_id, name="totals")
            response = stage.api.client.request(verb, f"/statecheck{place}", content=body, headers=headers)
            assert response.status_code in (400, 422)
            assert HIDDEN not in response.text

    @pytest.mark.parametrize("path", ["/v1/token", "/v1/token/read"])
    def test_a_secret_in_the_place_of_an_id_is_not_shown(self, api: ApiServer, path: str) -> None:
        body = {"ti_id": HIDDEN, "secret": HIDDEN, "job_id": HIDDEN}
        assert HIDDEN not in api.call("POST", path, api.task_token(), body).text

    def test_a_place_in_the_path_is_looked_at_too(self, api: ApiServer) -> None:
        path = f"/v1/jobs/{PLACES['job_id']}/operators/a%00b/latest"
        assert api.call("GET", path, api.task_token()).status_code == 400


class TestErrors:
    def test_each_says_its_code_its_text_and_its_facts(self, stage: Stage) -> None:
        missing = stage.api.call("GET", f"/v1/jobs/{'0' * 32}", stage.task_token())
        assert missing.status_code == 404
        assert missing.json()["code"] == "checkpoint_not_found"
        assert missing.json()["attributes"] == {"job_id": "0" * 32}
        path = f"/v1/jobs/{stage.attempt.job_id}/checkpoints/999"
        no_checkpoint = stage.api.call("GET", path, stage.attempt.token)
        assert (no_checkpoint.status_code, no_checkpoint.json()["code"]) == (404, "checkpoint_not_found")
        assert no_checkpoint.json()["attributes"] == {"checkpoint_id": 999}
        stage.api.attempt()
        stale = stage.api.finish(stage.attempt)
        assert stale.status_code == 409
        assert stale.json()["attributes"] == {"epoch": 2, "current_epoch": 3}

    def test_a_setting_out_of_range_is_named(self, api: ApiServer) -> None:
        response = api.post("register", api.task_token(), registration(num_retained=0))
        assert response.status_code == 400
        assert response.json()["attributes"] == {"key": "num_retained", "value": 0}

    def test_an_operator_that_does_not_fit_its_job_is_the_callers_mistake(self, stage: Stage) -> None:
        stage.api.complete(stage.attempt)
        other = registration(uid="other", allow_non_restored_state=False)
        response = stage.api.post("register", stage.api.task_token(), other)
        assert (response.status_code, response.json()["code"]) == (409, "incompatible_checkpoint")

    def test_an_attempt_cannot_end_as_running_or_fenced(self, stage: Stage) -> None:
        for status in ("running", "fenced"):
            assert stage.api.finish(stage.attempt, status).status_code == 400


class TestWithoutTables:
    @pytest.fixture
    def empty(self, tmp_path: Path) -> Iterator[ApiServer]:
        with ApiServer(create_engine(f"sqlite:///{tmp_path}/empty.db")) as api:
            yield api

    @pytest.mark.parametrize(("verb", "path", "operation"), OPERATIONS, ids=_ids)
    def test_every_route_says_to_migrate(
        self, empty: ApiServer, verb: str, path: str, operation: dict[str, Any]
    ) -> None:
        body = _examples(operation)[0] if "requestBody" in operation else None
        if path == "/v1/token":
            empty.tasks.announced = 1
            caller = {"dag_id": "nightly", "run_id": "r", "task_id": "features"}
            body = {"ti_id": json.dumps(caller), "secret": SECRET}
        response = empty.call(verb, path.format(**PLACES), "some-token", body)
        assert response.status_code == 503
        assert response.json()["code"] == "environment_not_ready"
        assert "airflow db migrate" in response.json()["message"]

    def test_the_api_works_as_soon_as_the_tables_are_there(self, empty: ApiServer) -> None:
        assert empty.call("GET", "/v1/health").status_code == 503
        METADATA.create_all(empty.engine)
        assert accepted(empty.call("GET", "/v1/health"))["status"] == "ok"
        empty.complete(empty.attempt())


class TestWithoutDatabase:
    """The text of a driver names host and user of the database; who has shown no token must not read it."""

    DETAIL = 'connection to server at "db.internal" failed: password authentication failed for user "airflow"'

    @pytest.fixture(autouse=True)
    def _broken(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise OperationalError("SELECT", {}, Exception(self.DETAIL))

        monkeypatch.setattr("sqlalchemy.engine.Connection.execute", refuse)

    @pytest.mark.parametrize("path", ["/v1/health", "/v1/jobs"])
    def test_the_reply_is_retryable_and_keeps_the_drivers_text_back(
        self, stage: Stage, path: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        response = stage.api.call("GET", path, stage.attempt.token)
        assert (response.status_code, response.json()["code"]) == (503, "coordinator_unavailable")
        assert "nothing was changed" in response.json()["message"]
        assert "db.internal" not in response.text
        assert self.DETAIL in caplog.text

    def test_a_message_is_refused_alike(self, stage: Stage) -> None:
        body = {"attempt": stage.attempt.ref, "request_key": new_key()}
        response = stage.api.post("trigger", stage.attempt.token, body)
        assert response.status_code == 503
        assert "db.internal" not in response.text


@pytest.mark.parametrize(
    ("error", "status"),
    [(HandleExistsError("taken"), 409), (HandleNotFoundError("gone"), 404), (ResourceVersionError("changed"), 409)],
)
def test_errors_about_handles_are_the_callers(error: StateCheckError, status: int) -> None:
    app = checked_app()

    @app.get("/handle")
    def fails() -> None:
        raise error

    reply = TestClient(app).get("/handle")
    assert (reply.status_code, reply.json()["code"]) == (status, error.code)
