"""Waiting in the worker, and handing over to the triggerer, over the real API in another process."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.bases import sensor as base_sensor
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.exceptions import CoordinatorUnavailableError
from airflow_provider_statecheck.gateway.http import HttpClient
from airflow_provider_statecheck.sensors.checkpoint import CheckpointSensor
from tests.docs.pages import ROOT, blocks_of
from tests.unit.operators.test_registration import make_context
from tests.unit.worker import ServedJobs

CONTEXT: Any = {}
DAY = 24 * 3600.0


def make_sensor(**changes: Any) -> CheckpointSensor:
    return CheckpointSensor(**{"task_id": "wait", "job": "sales"} | changes)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set what happens in each pause between two pokes instead of waiting."""

    def set_steps(*steps: Callable[[], object]) -> None:
        left = iter(steps)
        clock = SimpleNamespace(sleep=lambda _: next(left)(), monotonic=time.monotonic)
        monkeypatch.setattr(base_sensor, "time", clock)

    return set_steps


def _deferral(sensor: CheckpointSensor) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute(CONTEXT)
    return deferred.value


def _arguments(deferred: TaskDeferred) -> dict[str, Any]:
    arguments: dict[str, Any] = deferred.trigger.serialize()[1]
    return arguments


@pytest.mark.parametrize("deferrable", [False, True], ids=["poke", "deferrable"])
def test_a_checkpoint_that_is_there_is_returned_at_once(in_worker: ServedJobs, deferrable: bool) -> None:
    in_worker.complete()
    assert make_sensor(deferrable=deferrable).execute(CONTEXT) == {
        "job": "sales",
        "uid": "aggregate",
        "checkpoint_id": 1,
        "pointer": f"memory://base/{job_id_of('sales')}/chk-1",
        "completed_at": in_worker.clock.now().isoformat(),
    }


def test_no_job_and_no_checkpoint_are_waited_for(in_worker: ServedJobs, pauses) -> None:
    pauses(in_worker.begin, in_worker.complete)
    assert make_sensor(deferrable=False).execute(CONTEXT)["checkpoint_id"] == 1


def test_an_operator_that_the_job_does_not_have_is_told_once(in_worker: ServedJobs, pauses, capfd) -> None:
    in_worker.complete(uid="aggregate")
    in_worker.complete(uid="report")
    pauses(lambda: None, lambda: in_worker.complete(uid="aggregated"))
    assert make_sensor(uid="aggregated", deferrable=False).execute(CONTEXT)["checkpoint_id"] == 3
    said = "Job 'sales' has no operator 'aggregated' so far; it has 'aggregate', 'report'."
    assert capfd.readouterr().out.count(said) == 1


def test_a_mapped_operator_is_named_by_its_uid_and_key(in_worker: ServedJobs) -> None:
    in_worker.complete(uid="part[south]")
    assert not make_sensor(uid="part", map_key="north").poke(CONTEXT)
    in_worker.complete(uid="part[north]")
    found = make_sensor(uid="part", map_key="north").poke(CONTEXT).xcom_value
    assert found is not None
    assert (found["uid"], found["checkpoint_id"]) == ("part[north]", 2)


def test_rendered_at_least_is_a_text(in_worker: ServedJobs) -> None:
    in_worker.complete()
    assert [bool(make_sensor(at_least=text).poke(CONTEXT)) for text in ("1", "2")] == [True, False]


def test_age_is_judged_by_the_servers_clock(in_worker: ServedJobs) -> None:
    in_worker.complete()
    sensor = make_sensor(max_age=timedelta(minutes=1))
    assert sensor.poke(CONTEXT)
    in_worker.clock.advance(61)
    assert not sensor.poke(CONTEXT)


def test_a_long_wait_outlives_the_tokens_of_the_task(in_worker: ServedJobs, pauses) -> None:
    pauses(lambda: in_worker.clock.advance(DAY / 2), lambda: in_worker.clock.advance(DAY / 2), in_worker.complete)
    assert make_sensor(deferrable=False).execute(CONTEXT)["checkpoint_id"] == 1


def test_timeout_of_a_poking_sensor_is_airflows_own(in_worker: ServedJobs, pauses) -> None:
    pauses(lambda: None)
    with pytest.raises(AirflowSensorTimeout):
        make_sensor(deferrable=False, timeout=0).execute(CONTEXT)


def test_the_trigger_gets_the_condition_the_interval_and_the_timeout(in_worker: ServedJobs) -> None:
    sensor = make_sensor(
        uid="part",
        map_key="north",
        at_least=3,
        max_age=timedelta(hours=1),
        poke_interval=5,
        timeout=600,
        deferrable=True,
    )
    deferred = _deferral(sensor)
    arguments = _arguments(deferred)
    assert arguments.pop("token")
    assert time.time() < arguments.pop("deadline") <= time.time() + 600
    assert arguments == {
        "job": "sales",
        "uid": "part[north]",
        "at_least": 3,
        "max_age_seconds": 3600.0,
        "poke_interval": 5.0,
        "url": in_worker.url,
        "request_timeout_seconds": 30.0,
    }
    assert timedelta(0) < deferred.timeout <= timedelta(seconds=600)
    assert deferred.method_name == "execute_complete"


def _opens(served: ServedJobs, token: str, job: str) -> str:
    try:
        HttpClient(served.url).get(f"jobs/{job_id_of(job)}", token)
    except Exception as error:
        return type(error).__name__
    return "opened"


def test_the_trigger_gets_a_token_that_reads_one_job(in_worker: ServedJobs) -> None:
    in_worker.begin()
    in_worker.begin(job="secret")
    token = _arguments(_deferral(make_sensor(deferrable=True)))["token"]
    assert (_opens(in_worker, token, "sales"), _opens(in_worker, token, "secret")) == ("opened", "AccessDeniedError")


def test_the_token_lives_for_a_quarter_of_an_hour_however_long_the_wait(in_worker: ServedJobs) -> None:
    in_worker.begin()
    token = _arguments(_deferral(make_sensor(deferrable=True, timeout=400 * DAY)))["token"]
    in_worker.clock.advance(15 * 60 - 1)
    assert _opens(in_worker, token, "sales") == "opened"
    in_worker.clock.advance(1)
    assert _opens(in_worker, token, "sales") == "TokenExpiredError"


def test_a_task_whose_trigger_may_not_look_any_more_waits_on_with_another_token(in_worker: ServedJobs) -> None:
    sensor = make_sensor(deferrable=True, timeout=600)
    first = _arguments(_deferral(sensor))
    event = {"status": "expired", "deadline": first["deadline"] - 100}
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute_complete(CONTEXT, event)
    again = _arguments(deferred.value)
    assert timedelta(0) < deferred.value.timeout <= timedelta(seconds=500)
    assert again["deadline"] == event["deadline"]
    assert again["token"] != first["token"]
    assert _opens(in_worker, again["token"], "sales") == "CheckpointNotFoundError"


def test_such_a_task_looks_first(in_worker: ServedJobs) -> None:
    in_worker.complete()
    event = {"status": "expired", "deadline": time.time()}
    assert make_sensor(deferrable=True).execute_complete(CONTEXT, event)["checkpoint_id"] == 1


def test_such_a_task_has_no_more_time_than_before(in_worker: ServedJobs) -> None:
    with pytest.raises(TaskDeferred) as deferred:
        make_sensor(deferrable=True).execute_complete(CONTEXT, {"status": "expired", "deadline": time.time() - 1})
    assert deferred.value.timeout == timedelta(0)


def test_the_token_is_shown_nowhere(in_worker: ServedJobs, caplog, capfd) -> None:
    with caplog.at_level(logging.DEBUG):
        deferred = _deferral(make_sensor(deferrable=True))
    token = _arguments(deferred)["token"]
    assert token not in f"{deferred!r} {deferred.trigger!r} {caplog.text} {capfd.readouterr()}"


def test_lost_replies_do_not_keep_a_sensor_from_being_deferred(in_worker: ServedJobs) -> None:
    in_worker.lose_replies()
    assert _arguments(_deferral(make_sensor(deferrable=True)))["token"]


def test_where_the_database_is_open_the_trigger_needs_neither_url_nor_token(with_database: ServedJobs) -> None:
    arguments = _arguments(_deferral(make_sensor(deferrable=True)))
    assert (arguments["url"], arguments["token"]) == (None, None)
    assert arguments["job"] == "test/sales", "the operators of a test run write to that one"


@pytest.mark.parametrize("deferrable", [False, True], ids=["poke", "deferrable"])
def test_a_test_run_does_not_see_the_real_job(with_database: ServedJobs, pauses, deferrable: bool) -> None:
    with_database.complete()
    if deferrable:
        _deferral(make_sensor(deferrable=True))
        return
    pauses(lambda: with_database.complete(job="test/sales"))
    assert make_sensor(deferrable=False).execute(CONTEXT)["job"] == "test/sales"


def test_what_the_trigger_found_is_returned() -> None:
    found = {"checkpoint_id": 1, "pointer": "file:///chk-1"}
    assert make_sensor().execute_complete(CONTEXT, {"status": "success", "checkpoint": found}) == found


def test_a_trigger_that_gave_up_fails_the_task_in_a_way_that_a_retry_may_mend() -> None:
    event = {"status": "error", "message": "the token expired"}
    with pytest.raises(AirflowException, match="the token expired") as raised:
        make_sensor().execute_complete(CONTEXT, event)
    assert not isinstance(raised.value, AirflowFailException)
    with pytest.raises(AirflowSkipException):
        make_sensor(soft_fail=True).resume_execution("execute_complete", {"event": event}, CONTEXT)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"job": ""}, "Expected a job"),
        ({"uid": ""}, "Expected a uid"),
        ({"job": "None"}, "Expected a value for job"),
        ({"uid": "None"}, "Expected a value for uid"),
        ({"map_key": "north"}, "map_key"),
        ({"uid": "part", "map_key": ""}, "map_key"),
        ({"at_least": "soon"}, "at_least"),
        ({"at_least": 0}, "at_least"),
        ({"at_least": 1.5}, "at_least"),
        ({"at_least": float("inf")}, "at_least"),
        ({"max_age": timedelta(0)}, "max_age"),
        ({"max_age": "6 hours"}, "max_age"),
    ],
)
@pytest.mark.parametrize("deferrable", [False, True], ids=["poke", "deferrable"])
def test_arguments_out_of_their_range_fail_the_task_for_good(with_database, arguments, text, deferrable) -> None:
    with pytest.raises(AirflowFailException, match=text):
        make_sensor(deferrable=deferrable, **arguments).execute(CONTEXT)


def test_a_connection_that_does_not_exist_fails_the_task_for_good(in_worker: ServedJobs) -> None:
    with pytest.raises(AirflowFailException, match="'elsewhere'"):
        make_sensor(statecheck_conn_id="elsewhere").execute(CONTEXT)


def test_another_connection_leads_to_another_server(in_worker: ServedJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ELSEWHERE", '{"conn_type": "statecheck", "host": "http://127.0.0.1:9"}')
    with pytest.raises(CoordinatorUnavailableError, match="found no server"):
        make_sensor(statecheck_conn_id="elsewhere").execute(CONTEXT)


def test_names_are_rendered() -> None:
    sensor = make_sensor(job="{{ j }}", uid="{{ u }}", map_key="{{ m }}", at_least="{{ n }}")
    context: Any = {"j": "sales", "u": "part", "m": "north", "n": 3}
    sensor.render_template_fields(context)
    assert (sensor.job, sensor.uid, sensor.map_key, sensor.at_least) == ("sales", "part", "north", "3")


def test_a_name_of_a_job_that_a_template_left_out_is_told() -> None:
    for job in ("", "None"):
        with pytest.raises(AirflowFailException, match="job"):
            make_sensor(job=job).execute(CONTEXT)


def test_a_sensor_is_serialised_with_its_dag_and_comes_back() -> None:
    from airflow.serialization.serialized_objects import DagSerialization

    with DAG("dag") as dag:
        make_sensor(uid="part", max_age=timedelta(hours=1), at_least=2, deferrable=True)
        CheckpointSensor.partial(task_id="mapped").expand(job=["one", "two"])
    again = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert tuple(again.task_dict["wait"].template_fields) == CheckpointSensor.template_fields
    assert set(again.task_dict) == {"wait", "mapped"}


@pytest.mark.parametrize("date", [None, datetime(2026, 1, 1, tzinfo=UTC)], ids=["without a date", "dated"])
def test_example_of_the_page_waits_for_the_job_of_its_own_run(in_worker: ServedJobs, date: datetime | None) -> None:
    """A run that an asset or a trigger starts may have no logical date."""
    found: dict[str, Any] = {}
    [code] = [
        block.code for block in blocks_of(ROOT / "docs" / "use" / "airflow.md") if "CheckpointSensor(" in block.code
    ]
    exec(code.replace("\nCheckpointSensor(", "\nsensor = CheckpointSensor("), found)
    context: Any = make_context(logical_date=date, run_id="manual__1")
    sensor: CheckpointSensor = found["sensor"]
    sensor.render_template_fields(context)
    in_worker.complete(job=f"dag/{'manual__1' if date is None else date.isoformat()}", uid="features")
    assert sensor.execute(context)["checkpoint_id"] == 1
