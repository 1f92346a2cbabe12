"""Applications that are killed, and whose retry goes on from the last completed checkpoint."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from tests.airflow.conftest import Airflow
from tests.standalone_cluster import SPARK_HOME
from tests.submit.conftest import Pipeline

RESUMED = ["numbers", "item a", "item b", "item b", "item c"]


@pytest.mark.parametrize(
    ("mode", "trouble"),
    [
        pytest.param("local", "kill driver", marks=pytest.mark.soak),
        pytest.param("local", "kill jvm", marks=pytest.mark.soak),
        pytest.param("client", "kill driver", marks=pytest.mark.soak),
        pytest.param("cluster", "kill driver", marks=pytest.mark.soak),
        pytest.param("rest", "raise", marks=pytest.mark.soak),
    ],
)
def test_killed_application_is_submitted_again_and_restores(pipeline, mode: str, trouble: str) -> None:
    stage: Pipeline = pipeline(mode, trouble)
    assert stage.run() != 0
    first = stage.output
    assert stage.run() == 0, stage.output
    assert stage.computed() == RESUMED
    assert (stage.work / "result").read_text() == "300"
    assert ".zip/" in (stage.work / "package").read_text(), "the driver uses the package that was shipped"
    attempts = stage.job().attempts
    assert [a.status for a in attempts] == [AttemptStatus.FAILED, AttemptStatus.FINISHED]
    assert attempts[1].restored_from == 2
    assert "retains checkpoint 2: 1 snapshot, 1 finished item" in first
    assert "Restore pointer: file://" in first


@pytest.mark.soak
def test_driver_of_a_test_run_resumes_without_an_api_server(airflow_db: Path, tmp_path: Path) -> None:
    """The task of a test run serves the coordinator's API to its driver itself."""
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
