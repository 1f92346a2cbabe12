"""What the end of a real run means for the checkpoints of its job, told by Airflow's own listener manager."""

from __future__ import annotations

import pytest

from tests.airflow.conftest import ROOT, Airflow

pytestmark = pytest.mark.airflow


@pytest.mark.parametrize(
    ("day", "end", "expected"),
    [
        ("2026-02-01", "success", "RUN success CHECKPOINT subsumed"),
        pytest.param("2026-02-02", "failed", "RUN failed CHECKPOINT completed", marks=pytest.mark.soak),
        pytest.param("2026-02-03", "rolled back", "RUN None CHECKPOINT completed", marks=pytest.mark.soak),
        pytest.param("2026-02-04", "test", "RUN success CHECKPOINT completed", marks=pytest.mark.soak),
    ],
)
def test_checkpoints_end_with_their_run_as_retention_says(airflow: Airflow, day: str, end: str, expected: str) -> None:
    assert expected in ended(airflow, day, end)
    assert "are retained until the next garbage collection" not in airflow.output


@pytest.mark.soak
def test_a_database_that_refuses_a_statement_does_not_keep_a_run_from_ending(airflow: Airflow) -> None:
    assert "RUN success CHECKPOINT completed" in ended(airflow, "2026-02-05", "broken")
    assert "Checkpoints of an ended run are retained until the next garbage collection" in airflow.output


def ended(airflow: Airflow, day: str, end: str) -> str:
    """Let a run end so and return what the process printed."""
    script = str(ROOT / "tests" / "airflow" / "end_run.py")
    assert airflow.finish(airflow.start(script, "classic", day, end)) == 0, airflow.output
    return airflow.output
