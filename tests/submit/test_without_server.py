"""``dag.test()``: the task serves the coordinator's API to its driver itself."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from tests.airflow.conftest import Airflow
from tests.standalone_cluster import SPARK_HOME
from tests.submit.test_resume import RESUMED


@pytest.mark.soak
def test_driver_of_a_test_run_resumes_without_an_api_server(airflow_db: Path, tmp_path: Path) -> None:
    airflow = Airflow(home=airflow_db, work=tmp_path)
    airflow.environment = {
        "AIRFLOW__CORE__DAGS_FOLDER": str(Path(__file__).parent / "dags"),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "PATH": f"{SPARK_HOME / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }
    assert airflow.test_dag("submitted", "2026-02-01T00:00:00+00:00") == 0, airflow.output
    assert airflow.computed() == RESUMED
    view = airflow.job("test/submitted/2026-02-01T00:00:00+00:00")
    assert [a.status for a in view.attempts] == [AttemptStatus.FAILED, AttemptStatus.FINISHED]
    assert "retains checkpoint 2" in airflow.output
