"""A stage under Airflow that is asked to stop with a savepoint, and another run that begins from it."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from tests.airflow.conftest import Airflow

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.soak]


def test_a_stage_stops_with_a_savepoint_without_a_retry_and_another_run_begins_from_it(airflow: Airflow) -> None:
    airflow.environment["AIRFLOW__STATECHECK__SAVEPOINT_DIR"] = f"file://{airflow.work}/savepoints"
    assert airflow.test_dag("decorated", "2026-02-01T00:00:00+00:00", trouble="stop with a savepoint") == 1
    assert airflow.computed() == ["numbers", "item a", "item b"], airflow.output
    view = airflow.job("test/decorated/2026-02-01T00:00:00+00:00")
    assert [a.status for a in view.attempts] == [AttemptStatus.FAILED]
    [savepoint] = [c for c in view.checkpoints if c.properties.is_savepoint]
    assert f": {savepoint.location}. Clear the task" in airflow.output

    airflow.environment["FROM_SAVEPOINT"] = savepoint.location
    assert airflow.test_dag("decorated", "2026-02-02T00:00:00+00:00") == 0, airflow.output
    assert airflow.computed()[3:] == ["item c"]
    assert "started from a savepoint" in airflow.output
