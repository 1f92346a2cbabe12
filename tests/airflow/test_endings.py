"""The attempts of tasks that end in each way, under Airflow's own rules."""

from __future__ import annotations

import sqlite3

import pytest

from airflow_provider_statecheck.checkpoint.ids import operator_id_of
from tests.airflow.conftest import Airflow
from tests.airflow.dags.endings import ENDINGS

STATUS_OF_STATE = {"success": "finished", "skipped": "finished", "failed": "failed"}
STATES = {"returns": "success", "skips": "skipped", "skips_others": "success"}


@pytest.mark.airflow
def test_attempt_has_the_status_that_the_state_of_its_task_means(airflow: Airflow) -> None:
    airflow.environment = {"STAGE_ENDINGS": "yes"}
    airflow.test_dag("endings", "2026-02-01T00:00:00+00:00")
    with sqlite3.connect(airflow.home / "airflow.db") as rows:
        states = dict(rows.execute("select task_id, state from task_instance"))
    assert states == {end.__name__: STATES.get(end.__name__, "failed") for end in ENDINGS}, airflow.output
    view = airflow.job("test/endings/2026-02-01T00:00:00+00:00")
    statuses = {a.operator_id: a.status.value for a in view.attempts}
    expected = {operator_id_of(task): STATUS_OF_STATE[state] for task, state in states.items()}
    assert statuses == expected, airflow.output
    assert airflow.output.count("retains checkpoint") == list(states.values()).count("failed")
