"""How long a token lives, what it becomes, and what of it is kept."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select

from airflow_provider_statecheck.api.tokens import (
    ATTEMPT_LIFETIME,
    DRAIN_LIFETIME,
    MAX_READERS,
    READ_LIFETIME,
    TASK_LIFETIME,
    IssuedToken,
)
from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key
from airflow_provider_statecheck.exceptions import AccessDeniedError
from airflow_provider_statecheck.metadata.tables import TOKENS
from tests.messages import ManualClock, present
from tests.unit.api.served_stage import refused
from tests.unit.api.server import (
    CALLER,
    JOB,
    OTHER_DAG,
    OTHER_TASK,
    ApiServer,
    accepted,
    acknowledgement,
    registration,
)
from tests.unit.api.stage import Stage

SECOND = timedelta(seconds=1)


def _wait(api: ApiServer, time: timedelta) -> None:
    api.clock.advance(time.total_seconds())


class TestOfATask:
    def test_it_ends_after_a_quarter_of_an_hour(self, api: ApiServer) -> None:
        assert timedelta(minutes=15) == TASK_LIFETIME
        token = api.task_token()
        _wait(api, TASK_LIFETIME - SECOND)
        accepted(api.call("GET", "/v1/jobs", token))
        _wait(api, SECOND)
        refused(api.call("GET", "/v1/jobs", token), 401, "token_expired")

    def test_it_does_not_slide(self, api: ApiServer) -> None:
        token = api.task_token()
        for _ in range(3):
            _wait(api, TASK_LIFETIME / 4)
            accepted(api.call("GET", "/v1/jobs", token))
        _wait(api, TASK_LIFETIME / 4)
        refused(api.post("register", token, registration()), 401, "token_expired")

    def test_one_that_a_clock_far_ahead_gave_ends_when_the_clock_is_set_right(self, api: ApiServer) -> None:
        _wait(api, timedelta(days=5))
        token = api.task_token()
        accepted(api.call("GET", "/v1/jobs", token))
        _wait(api, -timedelta(days=5))
        refused(api.call("GET", "/v1/jobs", token), 401, "token_expired")

    def test_one_that_a_server_gave_whose_clock_is_a_little_ahead_is_good(self, api: ApiServer) -> None:
        token = api.task_token()
        _wait(api, -timedelta(minutes=4))
        accepted(api.call("GET", "/v1/jobs", token))

    def test_it_registers_one_attempt_and_no_second(self, api: ApiServer) -> None:
        token = api.task_token()
        accepted(api.post("register", token, registration()))
        before = api.rows()
        for job in (JOB, "another job"):
            refused(api.post("register", token, registration(job)), 403, "access_denied")
        assert api.rows() == before

    def test_it_repeats_its_own_registration_with_the_same_grant(self, api: ApiServer) -> None:
        attempt = api.attempt()
        assert accepted(api.post("register", attempt.token, attempt.message)) == attempt.grant

    @pytest.mark.parametrize("change", [{"job_name": "another job"}, {"attempt_key": "0" * 32}])
    def test_it_does_not_repeat_another_registration(self, api: ApiServer, change: dict[str, str]) -> None:
        attempt = api.attempt()
        before = api.rows()
        refused(api.post("register", attempt.token, attempt.message | change), 403, "access_denied")
        assert api.rows() == before

    def test_two_registrations_at_once_give_one_attempt(self, api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
        token, checked, claim = api.task_token(), threading.Barrier(2), api.services.tokens.claim

        def claim_together(*arguments: Any) -> None:
            checked.wait(timeout=60)  # both requests have been checked with the same unused token
            claim(*arguments)

        monkeypatch.setattr(api.services.tokens, "claim", claim_together)
        statuses: list[int] = []

        def register(job: str) -> None:
            statuses.append(api.post("register", token, registration(job)).status_code)

        threads = [threading.Thread(target=register, args=[job]) for job in ("one", "other")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(statuses) == [200, 403]
        assert len(api.rows()["statecheck_attempt"]) == 1

    def test_a_registration_whose_binding_was_lost_can_be_repeated_but_not_replaced(
        self, api: ApiServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        token, message = api.task_token(), registration()
        with monkeypatch.context() as patch:
            patch.setattr(api.services.tokens, "bind", lambda *_: None)
            accepted(api.post("register", token, message))
        refused(api.post("register", token, registration()), 403, "access_denied")
        accepted(api.post("register", token, message))
        assert len(api.rows()["statecheck_attempt"]) == 1


class TestOfAnAttempt:
    def test_it_slides_while_the_attempt_is_open(self, stage: Stage) -> None:
        assert timedelta(days=3) == ATTEMPT_LIFETIME
        for _ in range(5):
            _wait(stage.api, ATTEMPT_LIFETIME - SECOND)
            stage.api.trigger(stage.attempt)
        _wait(stage.api, ATTEMPT_LIFETIME)
        refused(stage.api.finish(stage.attempt), 401, "token_expired")

    def test_a_later_use_never_shortens_its_life(self, stage: Stage) -> None:
        _wait(stage.api, ATTEMPT_LIFETIME / 2)
        stage.api.trigger(stage.attempt)
        _wait(stage.api, ATTEMPT_LIFETIME / 100)
        stage.api.trigger(stage.attempt)
        _wait(stage.api, ATTEMPT_LIFETIME * 0.98)
        stage.api.trigger(stage.attempt)

    def test_a_clock_that_was_ahead_lets_it_live_no_longer(self, stage: Stage) -> None:
        _wait(stage.api, ATTEMPT_LIFETIME - SECOND)
        stage.api.trigger(stage.attempt)
        _wait(stage.api, SECOND - ATTEMPT_LIFETIME)
        stage.api.trigger(stage.attempt)
        _wait(stage.api, ATTEMPT_LIFETIME)
        refused(stage.api.finish(stage.attempt), 401, "token_expired")

    def test_it_outlives_the_death_of_its_task(self, stage: Stage) -> None:
        def nobody_runs(*_: object) -> None:
            raise AccessDeniedError("Expected a running task instance, found failed.")

        stage.api.tasks.prove = nobody_runs  # type: ignore[assignment,method-assign]
        _wait(stage.api, TASK_LIFETIME * 2)
        accepted(stage.api.post("acknowledge", stage.attempt.token, acknowledgement(stage.attempt, stage.pending)))

    def test_after_the_end_it_still_repeats_the_finish_and_confirms_discards(self, stage: Stage) -> None:
        accepted(stage.api.finish(stage.attempt))
        _wait(stage.api, DRAIN_LIFETIME - SECOND)
        effects = accepted(stage.api.finish(stage.attempt))
        open_ids = [each["checkpoint_id"] for each in effects["discards"]]
        body = {"job_id": stage.attempt.job_id, "checkpoint_ids": open_ids, "attempt": stage.attempt.ref}
        accepted(stage.api.post("confirm-discards", stage.attempt.token, body))
        assert accepted(stage.api.finish(stage.attempt))["discards"] == []

    def test_the_time_after_the_end_is_ten_minutes_and_does_not_slide(self, stage: Stage) -> None:
        assert timedelta(minutes=10) == DRAIN_LIFETIME
        accepted(stage.api.finish(stage.attempt))
        _wait(stage.api, DRAIN_LIFETIME / 2)
        accepted(stage.api.finish(stage.attempt))
        _wait(stage.api, DRAIN_LIFETIME / 2)
        refused(stage.api.finish(stage.attempt), 403, "access_denied")

    def test_after_the_end_it_begins_nothing(self, stage: Stage) -> None:
        accepted(stage.api.finish(stage.attempt))
        body = {"attempt": stage.attempt.ref, "request_key": new_key()}
        before = stage.api.rows()["statecheck_checkpoint"]
        refused(stage.api.post("trigger", stage.attempt.token, body), 409, "stale_attempt")
        refused(stage.api.post("register", stage.attempt.token, stage.attempt.message), 409, "stale_attempt")
        assert stage.api.rows()["statecheck_checkpoint"] == before

    def test_the_one_that_an_adoption_gives_leaves_the_drivers_own_valid(self, stage: Stage) -> None:
        token = stage.api.task_token()
        message = {"attempt": stage.attempt.ref, "owner": stage.attempt.message["owner"]}
        accepted(stage.api.post("adopt", token, message))
        stage.api.trigger(stage.attempt)
        body = {"attempt": stage.attempt.ref, "request_key": new_key()}
        accepted(stage.api.post("trigger", token, body))
        refused(stage.api.post("register", token, stage.attempt.message), 403, "access_denied")


class TestForReading:
    def _read(self, stage: Stage, token: str) -> Any:
        return stage.api.call("GET", f"/v1/jobs/{stage.attempt.job_id}", token)

    def _renew(self, stage: Stage, token: str) -> Any:
        return stage.api.call("POST", "/v1/token/renew", token)

    @pytest.mark.parametrize("asked", [{}, {"lifetime_seconds": 90 * 24 * 3600.0}])
    def test_it_ends_after_a_quarter_of_an_hour_whatever_was_asked_for(self, stage: Stage, asked: Any) -> None:
        body = {"job_id": stage.attempt.job_id, **asked}
        token = accepted(stage.api.call("POST", "/v1/token/read", stage.task_token(), body))["token"]
        _wait(stage.api, timedelta(minutes=15) - SECOND)
        accepted(self._read(stage, token))
        _wait(stage.api, SECOND)
        refused(self._read(stage, token), 401, "token_expired")
        refused(self._renew(stage, token), 401, "token_expired")

    def test_it_lives_on_while_it_is_renewed(self, stage: Stage) -> None:
        token = stage.reading_token()
        for _ in range(200):
            _wait(stage.api, READ_LIFETIME - SECOND)
            reply = accepted(self._renew(stage, token))
            assert datetime.fromisoformat(reply["expires_at"]) == stage.api.clock.now() + READ_LIFETIME
        accepted(self._read(stage, token))

    def test_it_is_renewed_only_while_its_task_waits(self, stage: Stage) -> None:
        token = stage.reading_token()
        stage.api.tasks.is_over.add(CALLER)
        before = stage.api.rows()
        refused(self._renew(stage, token), 403, "access_denied")
        assert stage.api.rows() == before

    def test_no_other_token_is_renewed(self, stage: Stage) -> None:
        for token in (stage.task_token(), stage.attempt.token):
            refused(self._renew(stage, token), 403, "access_denied")

    def test_a_task_has_so_many_at_a_time_and_no_more(self, stage: Stage) -> None:
        assert MAX_READERS == 20
        tokens = [stage.reading_token() for _ in range(MAX_READERS)]
        body = {"job_id": job_id_of("another job")}
        reply = stage.api.call("POST", "/v1/token/read", stage.task_token(), body)
        assert "renew one instead" in refused(reply, 403, "access_denied")
        for other in (OTHER_TASK, replace(CALLER, map_index=1), replace(CALLER, run_id="run-2")):
            accepted(stage.api.call("POST", "/v1/token/read", stage.api.task_token(other), body))
        _wait(stage.api, READ_LIFETIME - SECOND)
        accepted(self._renew(stage, tokens[0]))
        _wait(stage.api, SECOND)
        for _ in range(MAX_READERS - 1):
            stage.reading_token()
        refused(stage.api.call("POST", "/v1/token/read", stage.task_token(), body), 403, "access_denied")

    def test_it_outlives_the_attempts_of_its_job(self, stage: Stage) -> None:
        token = stage.reading_token()
        stage.api.attempt()
        accepted(stage.api.call("GET", f"/v1/jobs/{stage.attempt.job_id}", token))


class TestRegistration:
    """A task registers in its own name, and what the server knows of it stands above what it says."""

    def test_another_task_is_not_claimed(self, api: ApiServer) -> None:
        for claimed in ("nightly/report", "nightly/features2", "hourly/features", "nightly/features/x", "features", ""):
            message = registration()
            message["owner"]["logical_task"] = claimed
            refused(api.post("register", api.task_token(), message), 403, "access_denied")
        assert api.rows()["statecheck_job"] == []

    def test_an_instance_of_the_own_mapped_task_is(self, api: ApiServer) -> None:
        message = registration()
        message["owner"]["logical_task"] = "nightly/features[2026-01]"
        accepted(api.post("register", api.task_token(), message))

    @pytest.mark.parametrize(
        "job",
        [
            *("hourly/2026-01-01", "hourly/", "hourly/a/b"),
            # Anybody may remove a job of a test run, at any age.
            *("test/sales", "test/nightly/2026-01-01", "test/"),
        ],
    )
    def test_a_job_named_after_another_dag_or_a_test_run_is_refused(self, api: ApiServer, job: str) -> None:
        refused(api.post("register", api.task_token(), registration(job)), 403, "access_denied")
        assert api.rows()["statecheck_job"] == []

    @pytest.mark.parametrize("job", ["nightly/2026-01-01", "sales", "hourly", "no_dag/sales", "tests/x"])
    def test_any_other_name_is_taken(self, api: ApiServer, job: str) -> None:
        accepted(api.post("register", api.task_token(), registration(job)))

    def test_a_test_runs_own_server_takes_its_jobs(self, api: ApiServer) -> None:
        own = ApiServer(api.engine, is_of_test_run=True)
        accepted(own.post("register", own.task_token(), registration("test/nightly/2026-01-01")))

    def test_run_and_coordinates_are_those_that_the_server_knows(self, api: ApiServer) -> None:
        message = registration()
        message["owner"] |= {"run_id": "another run", "airflow": [["dag_id", "hourly"], ["map_index", "7"]]}
        token = api.task_token()
        accepted(api.post("register", token, message))
        owner = _owner(api, token)
        assert owner["run_id"] == "run-1"
        assert dict(owner["airflow"]) == {
            "dag_id": "nightly",
            "run_id": "run-1",
            "task_id": "features",
            "map_index": "-1",
        }

    def test_an_adoption_is_in_the_own_name_and_run_too(self, stage: Stage) -> None:
        api, before = stage.api, stage.api.rows()["statecheck_attempt"]
        for caller, claimed in ((OTHER_TASK, stage.attempt.message["owner"]), (OTHER_DAG, registration()["owner"])):
            body = {"attempt": stage.attempt.ref, "owner": claimed}
            refused(api.post("adopt", api.task_token(caller), body), 403, "access_denied")
        own = registration(caller=OTHER_TASK)["owner"]
        body = {"attempt": stage.attempt.ref, "owner": own}
        refused(api.post("adopt", api.task_token(OTHER_TASK), body), 409, "stale_attempt")
        assert api.rows()["statecheck_attempt"] == before

    def test_another_tasks_registration_cannot_be_repeated_to_get_its_attempt(self, api: ApiServer) -> None:
        victim = api.attempt(job="sales")
        thief = api.task_token(OTHER_DAG)
        seen = accepted(api.call("GET", f"/v1/jobs/{victim.job_id}", thief))["attempts"][0]["attempt_key"]
        message = registration("sales", caller=OTHER_DAG, attempt_key=seen)

        refused(api.post("register", thief, message), 403, "access_denied")

        refused(api.post("trigger", thief, {"attempt": victim.ref, "request_key": new_key()}), 403, "access_denied")
        api.trigger(victim)


def _owner(api: ApiServer, token: str) -> dict[str, Any]:
    jobs = accepted(api.call("GET", "/v1/jobs", api.task_token()))
    return dict(accepted(api.call("GET", f"/v1/jobs/{jobs[0]['job_id']}", token))["attempts"][0]["owner"])


class TestKept:
    def test_no_token_is_in_the_database(self, stage: Stage) -> None:
        tokens = [stage.attempt.token, stage.task_token(), stage.reading_token()]
        kept = str(stage.api.rows())
        database = present(stage.api.engine.url.database)
        stage.api.engine.dispose()
        with open(database, "rb") as file:  # noqa: PTH123 - a file that another process may still write
            raw = file.read()
        assert "nightly/features" in kept
        assert b"nightly/features" in raw, "the search must find what is there"
        for token in tokens:
            assert token not in kept
            assert token.encode() not in raw

    def test_what_expired_a_day_ago_is_dropped_when_the_next_token_is_given(self, api: ApiServer) -> None:
        for _ in range(3):
            api.task_token()
        _wait(api, TASK_LIFETIME + timedelta(days=1))
        api.task_token()
        assert len(api.rows()["statecheck_token"]) == 4, "until then the reply can say that it expired"
        _wait(api, SECOND)
        api.task_token()
        assert len(api.rows()["statecheck_token"]) == 2

    def test_a_time_of_the_client_is_never_looked_at(self, api: ApiServer) -> None:
        token = api.task_token()
        with api.engine.connect() as connection:
            expires_at = connection.execute(select(TOKENS.c.expires_at)).scalar_one()
        assert expires_at == ManualClock().now() + TASK_LIFETIME
        accepted(api.call("GET", "/v1/jobs", token))

    def test_a_token_does_not_show_in_the_text_of_its_object(self) -> None:
        issued = IssuedToken(token="the-token-itself", expires_at=datetime.fromisoformat("2026-01-01T00:00:00+00:00"))
        assert "the-token-itself" not in repr(issued) + str(issued)
