"""Queryable state over HTTP: names, single keys, batches, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from airflow_provider_statecheck.api import state_reads, state_routes
from airflow_provider_statecheck.api.state_reads import MAX_KEYS, MAX_TEXT, small_json
from airflow_provider_statecheck.checkpoint.codec import encode, json_parts
from airflow_provider_statecheck.configuration import StateServingSettings
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, RequestLimitError
from airflow_provider_statecheck.gateway.verbs import MAX_BODY_BYTES, decode_error
from airflow_provider_statecheck.queryable.answers import decode_reply
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.unit.api.served_stage import COMPOSITE, DESCRIPTORS, RECEIPT, ServedStage, refused
from tests.unit.api.server import OTHER_TASK, ApiServer, accepted, description


class TestSingleKeys:
    def test_key_of_several_columns_has_one_parameter_for_each(self, served: ServedStage) -> None:
        stage = served.make("shops", DESCRIPTORS, keys=COMPOSITE)
        stage.put("balance", {RECEIPT: 5})
        stage.checkpoint()
        token = served.api.reading_token(stage.job_id)
        answer = served.get("balances", token, job_id=stage.job_id, key=["center", "2026-01-31", "7"])
        reply = decode_reply(accepted(answer))
        assert (reply.keys, reply.values) == ((RECEIPT,), (5,))

    def test_name_with_any_character_is_found(self, served: ServedStage) -> None:
        served.stage.put("total", {"ann": 8})
        served.stage.checkpoint()
        reply = decode_reply(accepted(served.get("totals[eu]/net 100%", key="ann")))
        assert (reply.name, reply.values) == ("totals[eu]/net 100%", (8,))

    def test_entry_of_a_map_is_read_by_its_user_key(self, served: ServedStage) -> None:
        served.stage.state("ann", "prices").put("pear", 3)
        served.stage.checkpoint()
        reply = decode_reply(accepted(served.get("prices", key="ann", user_key="pear")))
        assert (reply.is_entry, reply.values) == (True, (3,))
        refused(served.get("prices", key="ann", user_key="plum"), 404, "unknown_key_or_namespace")

    def test_state_of_a_namespace_is_apart(self, served: ServedStage) -> None:
        served.stage.state("ann", "balance", "2026-01").update(4)
        served.stage.checkpoint()
        assert decode_reply(accepted(served.get("balances", key="ann", namespace="2026-01"))).values == (4,)
        refused(served.get("balances", key="ann"), 404, "unknown_key_or_namespace")

    def test_earlier_checkpoint_is_read_by_id_pointer_or_time(self, served: ServedStage) -> None:
        served.stage.put("balance", {"ann": 1})
        first = served.stage.checkpoint()
        at = served.api.clock.now()
        served.api.clock.advance(60)
        served.stage.put("balance", {"ann": 2})
        served.stage.checkpoint()
        for as_of in ({"checkpoint_id": first}, {"pointer": served.stage.pointer(first)}, {"at": at.isoformat()}):
            reply = decode_reply(accepted(served.get("balances", key="ann", **as_of)))
            assert (reply.checkpoint_id, reply.values) == (first, (1,))


class TestBatches:
    def test_batch_above_the_limit_is_refused(self, served: ServedStage) -> None:
        served.stage.put("balance", {"ann": 1})
        served.stage.checkpoint()
        accepted(served.post("balances", {"keys": ["ann"] * MAX_KEYS}))
        message = refused(served.post("balances", {"keys": ["ann"] * (MAX_KEYS + 1)}), 413, "request_limit")
        assert "split them" in message


class TestUnknown:
    def test_key_is_answered_with_its_checkpoint(self, served: ServedStage) -> None:
        served.stage.put("balance", {"ann": 1})
        checkpoint_id = served.stage.checkpoint()
        answer = served.get("balances", key="nobody")
        refused(answer, 404, "unknown_key_or_namespace")
        assert decode_error(answer.json()).checkpoint_id == checkpoint_id

    @pytest.mark.parametrize("place", ["file:///etc/passwd", "s3://elsewhere/chk-1", "http://169.254.169.254/chk-1"])
    def test_pointer_that_is_not_of_the_job_is_never_opened(self, tmp_path: Path, place: str) -> None:
        opened: list[str] = []

        def open_storage(uri: str) -> CheckpointStorage:
            opened.append(uri)
            return CheckpointStorage.open(uri)

        served = ServedStage(tmp_path, open_storage=open_storage)
        served.stage.put("balance", {"ann": 1})
        checkpoint_id = served.stage.checkpoint()
        refused(served.get("balances", key="ann", pointer=place), 404, "checkpoint_not_found")
        accepted(served.get("balances", key="ann"))
        assert set(opened) == {served.stage.pointer(checkpoint_id)}
        served.close()

    def test_pointer_of_another_job_is_not_found(self, served: ServedStage) -> None:
        other = served.make("other", DESCRIPTORS)
        other.put("balance", {"ann": 7777777777777})
        secret = other.pointer(other.checkpoint())
        served.stage.checkpoint()
        assert "7777777777777" not in refused(
            served.get("balances", key="ann", pointer=secret), 404, "checkpoint_not_found"
        )


class TestWrongRequests:
    def test_several_checkpoints_are_refused(self, served: ServedStage) -> None:
        served.stage.checkpoint()
        answer = served.get("balances", key="ann", checkpoint_id=1, at="2026-01-01T00:00:00Z")
        refused(answer, 400, "invalid_configuration")
        body = {"keys": ["ann"], "checkpoint_id": 1, "pointer": "file:///x"}
        refused(served.post("balances", body), 400, "invalid_configuration")

    @pytest.mark.parametrize("at", ["yesterday", "2026-01-01T00:00:00", "2026-01-01T00:00:00 00:00"])
    def test_time_without_zone_or_form_is_refused(self, served: ServedStage, at: str) -> None:
        served.stage.checkpoint()
        refused(served.get("balances", key="ann", at=at), 400, "invalid_configuration")

    @pytest.mark.parametrize(
        ("key", "named"),
        [
            (["center"], "shop, day, till"),
            (["center", "31.01.2026", "7"], "day"),
            (["center", "2026-01-31", "x"], "till"),
        ],
    )
    def test_key_of_another_form_is_answered_with_the_columns(
        self, served: ServedStage, key: list[str], named: str
    ) -> None:
        stage = served.make("shops", DESCRIPTORS, keys=COMPOSITE)
        stage.checkpoint()
        token = served.api.reading_token(stage.job_id)
        answer = served.get("balances", token, job_id=stage.job_id, key=key)
        assert answer.status_code == 400
        assert named in answer.json()["message"]

    def test_query_without_key_is_refused(self, served: ServedStage) -> None:
        served.stage.checkpoint()
        refused(served.get("balances"), 422, "invalid_configuration")

    def test_body_above_the_limit_is_refused(self, served: ServedStage) -> None:
        body = {"keys": ["x" * MAX_BODY_BYTES]}
        refused(served.post("balances", body), 413, "request_limit")
        refused(served.api.post("trigger", served.token, body), 413, "invalid_configuration")

    def test_key_may_have_characters_that_no_database_stores(self, served: ServedStage) -> None:
        served.stage.put("balance", {"a\x00b": 1})
        served.stage.checkpoint()
        assert decode_reply(accepted(served.post("balances", {"keys": ["a\x00b"]}))).values == (1,)
        assert decode_reply(accepted(served.get("balances", key="a\x00b"))).values == (1,)

    def test_long_key_is_refused(self, served: ServedStage) -> None:
        served.stage.checkpoint()
        refused(served.get("balances", key="x" * (MAX_TEXT + 1)), 413, "request_limit")


class TestAccess:
    def test_other_tokens_read_nothing(self, served: ServedStage) -> None:
        other = served.make("other", DESCRIPTORS)
        for token in ("unknown", served.api.reading_token(other.job_id)):
            for path in (served.path(), served.path("balances", key="ann")):
                assert served.api.call("GET", path, token).status_code == 403
            body = {"keys": ["ann"]}
            assert served.api.call("POST", served.path("balances"), token, body).status_code == 403

    def test_token_is_checked_before_the_body_is_read(self, served: ServedStage) -> None:
        assert served.api.call("POST", served.path("balances"), None, {"keys": "not a list"}).status_code == 403

    def test_granted_permission_ends_with_the_token(self, served: ServedStage) -> None:
        served.stage.put("balance", {"ann": 1})
        served.stage.checkpoint()
        served.api.clock.advance(15 * 60 - 1)
        accepted(served.get("balances", key="ann"))
        served.api.clock.advance(1)
        refused(served.get("balances", key="ann"), 401, "token_expired")

    def test_token_that_a_newer_attempt_revoked_reads_for_five_seconds(self, served: ServedStage) -> None:
        attempt = served.api.attempt("revoked")
        path = served.path(job_id=attempt.job_id)
        accepted(served.api.call("GET", path, attempt.token))
        served.api.attempt("revoked")
        accepted(served.api.call("GET", path, attempt.token))
        served.api.clock.advance(5)
        refused(served.api.call("GET", path, attempt.token), 409, "stale_attempt")


class TestRates:
    @pytest.fixture
    def served(self, tmp_path: Path) -> Iterator[ServedStage]:
        served = ServedStage(tmp_path, state_settings=StateServingSettings(state_requests_per_second=2.0))
        with served.api:
            yield served
        served.close()

    def test_caller_above_the_rate_is_told_when_to_come_back(self, served: ServedStage) -> None:
        served.stage.put("balance", {"ann": 1})
        served.stage.checkpoint()
        for _ in range(2):
            accepted(served.get("balances", key="ann"))
        answer = served.get("balances", key="ann")
        refused(answer, 429, "request_limit")
        assert answer.headers["Retry-After"] == "1"
        assert decode_error(answer.json()).retry_after_seconds == 0.5
        served.api.clock.advance(0.5)
        accepted(served.get("balances", key="ann"))
        refused(served.get("balances", key="ann"), 429, "request_limit")

    def test_other_callers_have_their_own_rate(self, served: ServedStage) -> None:
        served.stage.checkpoint()
        job_id, of_other_task = served.stage.job_id, served.api.task_token(OTHER_TASK)
        for token in (served.token, of_other_task) * 2:
            accepted(served.get("", token))
        for token in (served.token, of_other_task, served.api.reading_token(job_id)):
            refused(served.get("", token), 429, "request_limit")


class TestUnusableStorage:
    def test_server_without_storage_names_the_other_server(self, tmp_path: Path) -> None:
        for settings in ({"open_storage": None}, {"state_settings": StateServingSettings(serve_state=False)}):
            served = ServedStage(tmp_path, **settings)
            for answer in (served.get(), served.get("balances", key="ann")):
                message = refused(answer, 503, "environment_not_ready")
                assert "airflow statecheck serve-state" in message
            served.close()

    def test_invalid_option_stops_no_checkpoint(self, api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
        def invalid() -> StateServingSettings:
            raise InvalidConfigurationError("Expected [statecheck] serve_state to be true or false, found 'maybe'.")

        monkeypatch.setattr(api.services, "read_state_settings", invalid)
        attempt = api.attempt()
        api.complete(attempt)
        answer = api.call("GET", f"/v1/jobs/{attempt.job_id}/state", attempt.token)
        assert "'maybe'" in refused(answer, 400, "invalid_configuration")

    def test_connection_that_cannot_be_used_names_the_other_server(self, tmp_path: Path) -> None:
        def opened(_: str) -> CheckpointStorage:
            raise InvalidConfigurationError("Expected a connection 'aws', found none; create it.")

        served = ServedStage(tmp_path, open_storage=opened)
        served.stage.checkpoint()
        message = refused(served.get("balances", key="ann"), 503, "environment_not_ready")
        assert "connection 'aws'" in message
        assert "correct [statecheck] storage_conn_id" in message
        assert "airflow statecheck serve-state" in message
        served.close()

    def test_directory_that_is_not_on_this_machine_names_the_other_server(self, served: ServedStage) -> None:
        served.stage.put("balance", {"ann": 1})
        pointer = served.stage.pointer(served.stage.checkpoint())
        job_directory = Path(pointer.removeprefix("file://")).parent
        job_directory.rename(job_directory.with_name("elsewhere"))
        message = refused(served.get("balances", key="ann"), 503, "environment_not_ready")
        assert "no such directory" in message
        assert "airflow statecheck serve-state" in message


class TestDescription:
    def test_answers_have_the_described_form(self, served: ServedStage) -> None:
        served.stage.put("balance", {"ann": 1})
        served.stage.checkpoint()
        names, single = "/v1/jobs/{job_id}/state", "/v1/jobs/{job_id}/state/{name}"
        _require_form(names, "get", accepted(served.get()))
        _require_form(single, "get", accepted(served.get("balances", key="ann")))
        _require_form(single, "post", accepted(served.post("balances", {"keys": ["ann", "nobody"]})))

    def test_errors_are_described(self) -> None:
        for verb in ("get", "post"):
            described = description()["paths"]["/v1/jobs/{job_id}/state/{name}"][verb]["responses"]
            assert {"400", "401", "403", "404", "413", "429", "503"} <= set(described)


def _require_form(path: str, verb: str, answer: Any) -> None:
    content = description()["paths"][path][verb]["responses"]["200"]["content"]["application/json"]
    schema = {**content["schema"], "components": description()["components"]}
    jsonschema.Draft202012Validator(schema).validate(answer)


class TestAnswers:
    def test_answer_above_the_limit_is_refused(self, served: ServedStage, monkeypatch: pytest.MonkeyPatch) -> None:
        served.stage.put("balance", {"ann": 1})
        served.stage.checkpoint()
        size = len(served.get("balances", key="ann").content)
        monkeypatch.setattr(state_reads, "MAX_ANSWER_BYTES", size)
        accepted(served.get("balances", key="ann"))
        monkeypatch.setattr(state_reads, "MAX_ANSWER_BYTES", size - 1)
        answer = served.get("balances", key="ann")
        refused(answer, 413, "request_limit")
        assert isinstance(decode_error(answer.json()), RequestLimitError)
        assert "Retry-After" not in answer.headers

    def test_values_above_the_limit_of_all_subtasks_are_refused(
        self, served: ServedStage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names = [f"key {number}" for number in range(8)]
        served.stage.put("balance", dict.fromkeys(names, 1))
        served.stage.checkpoint()
        monkeypatch.setattr(state_routes, "MAX_VALUE_BYTES", 8 * 8)
        accepted(served.post("balances", {"keys": [*names, "nobody"]}))
        monkeypatch.setattr(state_routes, "MAX_VALUE_BYTES", 8 * 8 - 1)
        assert "63 bytes in memory" in refused(served.post("balances", {"keys": names}), 413, "request_limit")
        monkeypatch.setattr(state_routes, "MAX_VALUE_BYTES", 7)
        refused(served.get("balances", key="key 1"), 413, "request_limit")

    def test_time_of_completion_is_that_of_the_coordinator(self, served: ServedStage) -> None:
        served.stage.put("balance", {"ann": 1})
        served.stage.checkpoint()
        answer = accepted(served.get("balances", key="ann"))
        assert datetime.fromisoformat(answer["completed_at"]) == served.api.clock.now()


def small_json_of(answer: Any) -> bytes:
    return small_json(json_parts(answer))


@dataclass(frozen=True)
class Page:
    name: str
    at: datetime
    rows: tuple[Any, ...]
    more: tuple[Any, ...] = ()


PAGE = Page("é\n", datetime(2026, 1, 31, tzinfo=UTC), ((1, "a"), (2, None)))


@pytest.mark.parametrize("answer", [(), [], (1, "a", {"b": []}), (PAGE, PAGE), {"a": 1, "b": [], "c": [1, {}]}, PAGE])
def test_answer_is_the_json_of_its_values(answer: Any) -> None:
    assert json.loads(small_json_of(answer)) == json.loads(json.dumps(encode(answer)))


def test_elements_of_a_generator_are_a_list() -> None:
    assert json.loads(small_json_of({"name": "a", "rows": (n for n in range(3))})) == {"name": "a", "rows": [0, 1, 2]}


@pytest.mark.parametrize("field", ["rows", None])
def test_elements_above_the_limit_are_not_made(monkeypatch: pytest.MonkeyPatch, field: str | None) -> None:
    monkeypatch.setattr(state_reads, "MAX_ANSWER_BYTES", 1000)
    made: list[str] = []

    def elements() -> Iterator[str]:
        while True:
            made.append("x" * 100)
            yield made[-1]

    with pytest.raises(RequestLimitError, match="at most 1000 bytes"):
        small_json_of({"name": "a", field: elements()} if field else elements())
    assert len(made) == 10


def test_answer_of_the_limit_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(json.dumps(encode(asdict(PAGE)), ensure_ascii=False, separators=(",", ":")).encode())
    monkeypatch.setattr(state_reads, "MAX_ANSWER_BYTES", size)
    assert len(small_json_of(PAGE)) == size
    monkeypatch.setattr(state_reads, "MAX_ANSWER_BYTES", size - 1)
    with pytest.raises(RequestLimitError):
        small_json_of(PAGE)
