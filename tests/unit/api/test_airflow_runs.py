"""How a Dag run ended, by Airflow's own table."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from airflow_provider_statecheck.api.airflow_services import AirflowRuns
from airflow_provider_statecheck.checkpoint.properties import JobStatus
from tests.messages import make_owner
from tests.unit.api.airflow_rows import RunningTask


@pytest.mark.parametrize(
    ("state", "ended_as"),
    [("success", JobStatus.FINISHED), ("failed", JobStatus.FAILED), ("running", None), ("queued", None)],
)
def test_a_run_has_ended_when_it_succeeded_failed_or_is_gone(
    airflow_db: Path, state: str, ended_as: JobStatus | None
) -> None:
    from airflow import settings

    engine = settings.get_engine()
    assert str(airflow_db) in str(engine.url), "a test must never write to somebody's database"
    run_id = RunningTask.start(engine).run_id
    with engine.begin() as connection:
        connection.execute(text("UPDATE dag_run SET state = :s WHERE run_id = :r"), {"s": state, "r": run_id})
    owner = make_owner(airflow=(("dag_id", "nightly"), ("run_id", run_id)))
    assert AirflowRuns().ended_as(owner) is ended_as
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM task_instance WHERE run_id = :r"), {"r": run_id})
        connection.execute(text("DELETE FROM dag_run WHERE run_id = :r"), {"r": run_id})
    assert AirflowRuns().ended_as(owner) is JobStatus.CANCELED
