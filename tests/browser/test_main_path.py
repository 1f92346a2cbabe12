"""
What a user of Airflow sees of a job whose driver is killed: from the navigation to the steps that the retry restored.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from tests.browser.airflow_ui import AirflowUi
from tests.browser.stepped_run import STEPS, TOTAL, SteppedRun
from tests.live.deployment import Deployment
from tests.live.runs import kill

pytestmark = [pytest.mark.live, pytest.mark.soak]


@pytest.fixture
def run(deployment: Deployment) -> Iterator[SteppedRun]:
    run = SteppedRun(deployment, "main-path")
    yield run
    run.finish()  # a stage that still waits must not outlive its test


def test_a_user_finds_a_running_job_and_watches_its_steps_its_failure_and_its_retry(
    ui: AirflowUi, run: SteppedRun
) -> None:
    run.trigger()
    run.wait_for_step("numbers")
    run.finish_step("numbers")
    run.wait_for_step("doubled")

    ui.open_checkpoints()
    ui.screenshot("jobs")
    ui.open_job(run.job_name)
    ui.row(1, "running", of="Attempts").wait_for()
    ui.row("numbers", "computed", of="Steps of checkpoint 1").wait_for()

    run.finish_step("doubled")  # the page is open and shows the step without a reload
    ui.row("doubled", "computed", of="Steps of checkpoint 2").wait_for()

    kill(run.wait_for_step("total").jvm)
    run.wait_for_step("total")
    ui.row(2, "running", of="Attempts").filter(has_text="Checkpoint 2").wait_for()
    ui.row(1, "failed", of="Attempts").wait_for()
    for step in ("numbers", "doubled"):
        saved = ui.row(step, "restored", of="Steps of the restore").get_by_role("cell").last
        saved.wait_for()
        assert any(digit.isdigit() for digit in saved.inner_text())
    ui.screenshot("retry")

    run.finish()
    assert run.wait_for_end() == "success", run.story()
    ui.row(2, "finished", of="Attempts").wait_for()
    check_outcome(run)
    assert ui.errors == []


def check_outcome(run: SteppedRun) -> None:
    """Require what the page shows of the rows, of what was computed, and of the result."""
    first, second = run.job().attempts
    assert (first.status, second.status) == (AttemptStatus.FAILED, AttemptStatus.FINISHED)
    assert second.restored_from == 2
    assert run.computed() == [*STEPS, "total"]
    assert run.result() == TOTAL
