"""Forks that a user confirms: runs of a real Dag, started by Airflow's own api-server with its own users."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from airflow_provider_statecheck.api.forks import forking_task
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of, new_key
from tests.messages import complete_checkpoint, make_owner, make_registration, present
from tests.unit.api.action_page import EDITOR, VIEWER, ActionPage, Permit, audit_entries
from tests.unit.api.airflow_rows import add_run, write_dag
from tests.unit.api.server import accepted

DAG = "forked_nightly"
TASK = {"dag_id": DAG, "run_id": "run-1", "task_id": "features", "map_index": "-1"}
CONF = {"start": "", "month": 3, "output": "there"}


@pytest.fixture(scope="module")
def dag(engine: Engine) -> str:
    """A Dag whose task forks from the param ``start``, and a run of it."""
    from airflow.sdk import DAG as Dag, Param

    from airflow_provider_statecheck import CheckpointedPySparkOperator

    params = {"start": "", "month": Param(1, type="integer", minimum=1, maximum=12), "output": "here"}
    with Dag(DAG, start_date=datetime(2026, 1, 1, tzinfo=UTC), schedule=None, params=params) as dag:
        arguments: dict[str, Any] = {"python_callable": lambda spark, checkpoint: None, "job": "sales"}
        CheckpointedPySparkOperator(task_id="features", from_checkpoint="{{ params.start }}", **arguments)
        CheckpointedPySparkOperator(
            task_id="named", from_checkpoint="{{ params.start }}", fork="what-if", uid="other", **arguments
        )
    write_dag(engine, dag)
    add_run(engine, DAG, "run-1", CONF)
    return DAG


@pytest.fixture
def job(engine: Engine, dag: str) -> JobId:
    """A job of the Dag with two checkpoints."""
    return _job(engine)


def _job(engine: Engine, **task: str) -> JobId:
    coordinator, name = AttemptCoordinator(_store(engine)), f"sales-{new_key()}"
    owner = make_owner(airflow=tuple((TASK | task).items()))
    grant = coordinator.register(make_registration(job_name=name, owner=owner, num_retained=3))
    for _ in range(2):
        complete_checkpoint(coordinator, grant.attempt)
    return job_id_of(name)


def _store(engine: Engine) -> Any:
    from airflow_provider_statecheck.metadata.sql_store import SqlJobStore

    return SqlJobStore(engine)


@pytest.fixture
def page(airflow: TestClient, tokens: dict[str, str], job: JobId) -> ActionPage:
    return ActionPage(airflow, tokens[EDITOR], job)


def _runs(engine: Engine, key: str) -> list[Any]:
    from airflow.models.dagrun import DagRun

    with Session(engine) as session:
        return list(session.scalars(select(DagRun).where(DagRun.run_id == f"fork__{key}")))


def _pointer(engine: Engine, job: JobId, checkpoint_id: int) -> str:
    return str(_store(engine).checkpoint(job, checkpoint_id).location)


def test_a_confirmed_fork_starts_a_run_with_the_params_of_the_run_that_took_the_checkpoint(
    page: ActionPage, engine: Engine, job: JobId
) -> None:
    shown = accepted(page.preview("fork", checkpoint_id=1))
    assert shown["params"] == {"month": 3, "output": "there"}
    assert [each["checkpoint_id"] for each in shown["kept"]] == [1]
    assert [each["checkpoint_id"] for each in shown["recomputed"]] == [2]
    assert shown["deleted"] == []
    before = _store(engine).describe(job)
    key = new_key()
    done = accepted(page.send("fork", checkpoint_id=1, request_key=key))
    assert (done["status"], done["dag_id"], done["run_key"]) == ("completed", DAG, f"fork__{key}")
    (run,) = _runs(engine, key)
    assert run.conf == {"start": _pointer(engine, job, 1), "month": 3, "output": "there"}
    assert (run.state, run.logical_date, run.triggering_user_name) == ("queued", None, EDITOR)
    assert (run.run_type, run.triggered_by.value) == ("manual", "ui")
    after = _store(engine).describe(job)
    assert (after.checkpoints, after.operators, after.attempts) == (
        before.checkpoints,
        before.operators,
        before.attempts,
    )
    assert accepted(page.actions()) == [done]
    (entry,) = audit_entries(engine, job)
    written = json.loads(entry.extra)
    assert (entry.event, written["outcome"], written["checkpoint_id"]) == ("statecheck.fork", "completed", 1)


def test_the_user_may_change_the_params(page: ActionPage, engine: Engine, job: JobId) -> None:
    key = new_key()
    accepted(page.send("fork", checkpoint_id=2, request_key=key, params={"output": "elsewhere", "note": [1, None]}))
    (run,) = _runs(engine, key)
    assert run.conf == {"start": _pointer(engine, job, 2), "output": "elsewhere", "note": [1, None]}


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"month": 13}, "13 is greater than the maximum of 12"),
        ({"month": "May"}, "'May' is not of type 'integer'"),
        ({"start": "12"}, "Expected params without 'start'"),
        ({"output": ["a\x00b"]}, "U+0000"),
        ({"output": [10**30]}, "64 bits"),
    ],
    ids=str,
)
def test_params_that_the_dag_refuses_start_nothing(
    page: ActionPage, engine: Engine, params: dict[str, Any], reason: str
) -> None:
    key = new_key()
    reply = page.send("fork", checkpoint_id=1, request_key=key, params=params)
    assert (reply.status_code, reason in reply.json()["message"]) == (400, True), reply.text
    assert _runs(engine, key) == []
    assert accepted(page.actions()) == []
    accepted(page.send("fork", checkpoint_id=1, request_key=key))
    assert len(_runs(engine, key)) == 1, "the corrected request has the same key"


def test_params_of_another_form_are_refused(page: ActionPage) -> None:
    assert page.send("fork", checkpoint_id=1, params=["start"]).status_code == 422


def test_a_repeated_request_returns_the_first_run(page: ActionPage, engine: Engine, job: JobId) -> None:
    key = new_key()
    first = accepted(page.send("fork", checkpoint_id=1, request_key=key))
    assert accepted(page.send("fork", checkpoint_id=1, request_key=key, params={"month": 5})) == first
    (run,) = _runs(engine, key)
    assert run.conf["month"] == 3
    assert len(audit_entries(engine, job)) == 1


def test_copies_sent_at_the_same_time_start_one_run(page: ActionPage, engine: Engine) -> None:
    key = new_key()
    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda _: page.send("fork", checkpoint_id=1, request_key=key), range(4)))
    assert {json.dumps(accepted(reply), sort_keys=True) for reply in replies if reply.status_code == 200}
    assert {reply.status_code for reply in replies} <= {200, 503}
    assert len(_runs(engine, key)) == 1
    assert len(accepted(page.actions())) == 1


def test_the_run_and_the_row_of_the_request_are_committed_together(
    page: ActionPage, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_statecheck.exceptions import CoordinatorUnavailableError
    from airflow_provider_statecheck.metadata.sql_store import SqlJobTransaction

    def fail(*_: object) -> None:
        raise CoordinatorUnavailableError("the database is gone")

    key = new_key()
    with monkeypatch.context() as patch:
        patch.setattr(SqlJobTransaction, "save_action", fail)
        assert page.send("fork", checkpoint_id=1, request_key=key).status_code == 503
    assert _runs(engine, key) == []
    accepted(page.send("fork", checkpoint_id=1, request_key=key))
    assert len(_runs(engine, key)) == 1


def test_one_who_may_not_create_runs_starts_none_and_is_offered_none(
    airflow: TestClient, tokens: dict[str, str], page: ActionPage, job: JobId, engine: Engine, permit: Permit
) -> None:
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity

    path = f"/statecheck/jobs/{job}/checkpoints/1"
    headers = {"Authorization": f"Bearer {tokens[EDITOR]}"}
    assert "Fork from here" in airflow.get(path, headers=headers).text

    def without_runs(*_: object, method: str, access_entity: Any = None, **__: object) -> bool:
        return not (method == "POST" and access_entity is DagAccessEntity.RUN)

    permit(without_runs)
    key = new_key()
    for reply in (page.preview("fork", checkpoint_id=1), page.send("fork", checkpoint_id=1, request_key=key)):
        assert (reply.status_code, f"create runs of Dag '{DAG}'" in reply.text) == (403, True)
    assert _runs(engine, key) == []
    assert audit_entries(engine, job) == []
    shown = airflow.get(path, headers=headers).text
    assert "Restore with the next attempt" in shown
    assert "Fork from here" not in shown
    accepted(page.preview("restore", checkpoint_id=1))


def test_one_who_may_only_read_starts_none(
    airflow: TestClient, tokens: dict[str, str], job: JobId, engine: Engine
) -> None:
    key = new_key()
    reply = ActionPage(airflow, tokens[VIEWER], job).send("fork", checkpoint_id=1, request_key=key)
    assert (reply.status_code, _runs(engine, key)) == (403, [])


def test_a_paused_dag_and_a_named_fork_are_in_the_preview(
    page: ActionPage, airflow: TestClient, tokens: dict[str, str], engine: Engine
) -> None:
    from airflow.models.dag import DagModel

    def pause(is_paused: bool) -> None:
        with Session(engine) as session:
            session.get_one(DagModel, DAG).is_paused = is_paused
            session.commit()

    named = ActionPage(airflow, tokens[EDITOR], _job(engine, task_id="named", run_id="deleted"))
    pause(is_paused=True)
    try:
        notes = " ".join(accepted(named.preview("fork", checkpoint_id=1))["notes"])
    finally:
        pause(is_paused=False)
    assert "is paused: the run stays queued" in notes
    assert "The fork is named 'what-if'" in notes
    assert "the params are the defaults of the Dag" in notes
    assert "paused" not in " ".join(accepted(page.preview("fork", checkpoint_id=1))["notes"])


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("allowed_run_types", ["scheduled"], "does not allow manual runs"),
        ("has_import_errors", True, "without import errors"),
        ("is_stale", True, "the Dag was removed"),
    ],
)
def test_a_dag_that_takes_no_manual_runs_is_not_forked(
    page: ActionPage, engine: Engine, job: JobId, column: str, value: Any, reason: str
) -> None:
    from airflow.models.dag import DagModel

    def change(new: Any) -> Any:
        with Session(engine) as session:
            model = session.get_one(DagModel, DAG)
            old = getattr(model, column)
            setattr(model, column, new)
            session.commit()
            return old

    key, old = new_key(), change(value)
    try:
        reply = page.send("fork", checkpoint_id=1, request_key=key)
    finally:
        change(old)
    assert (reply.status_code, reason in reply.json()["message"]) == (400, True), reply.text
    assert _runs(engine, key) == []
    (entry,) = audit_entries(engine, job)
    assert json.loads(entry.extra)["outcome"] == "refused"


def test_nothing_is_forked_where_airflow_ignores_the_params_of_a_run(
    page: ActionPage, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__DAG_RUN_CONF_OVERRIDES_PARAMS", "False")
    key = new_key()
    for reply in (page.preview("fork", checkpoint_id=1), page.send("fork", checkpoint_id=1, request_key=key)):
        assert (reply.status_code, "dag_run_conf_overrides_params" in reply.json()["message"]) == (400, True), (
            reply.text
        )
    assert _runs(engine, key) == []


def test_a_checkpoint_that_is_not_retained_is_not_forked(page: ActionPage) -> None:
    assert page.send("fork", checkpoint_id=99).status_code == 404
    assert page.send("fork").status_code == 404


def test_the_arguments_are_read_from_the_serialized_dag(dag: str) -> None:
    found = present(forking_task(dag, "named"))
    assert (found.from_checkpoint, found.fork, found.param) == ("{{ params.start }}", "what-if", "start")
    assert found.params == {"start": "", "month": 1, "output": "here"}
    assert present(forking_task(dag, "gone")).param is None
    assert forking_task("gone", "features") is None
