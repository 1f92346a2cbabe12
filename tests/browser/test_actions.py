"""Actions through their buttons, previews and confirmations, with their effect in the rows and in the outcome."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, JobAction, RequestStatus
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError
from tests.browser.airflow_ui import AirflowUi
from tests.browser.job_pages import JobPages
from tests.browser.stepped_run import STEPS, TOTAL, JobRun
from tests.live.deployment import Deployment
from tests.live.rest import wait_until
from tests.live.runs import StageRun, kill

pytestmark = [pytest.mark.live, pytest.mark.soak]

MAINTENANCE = "statecheck_maintenance"
REQUESTS = "Newest requests to restore"


@pytest.fixture
def run(deployment: Deployment, request: pytest.FixtureRequest) -> Iterator[JobRun]:
    run = JobRun(deployment, request.node.name.removeprefix("test_a_user_")[:20].strip("_"))
    yield run
    run.finish()  # a stage that still waits must not outlive its test


@pytest.fixture
def pages(ui: AirflowUi, run: JobRun) -> Iterator[JobPages]:
    yield JobPages(ui, run.job_name)
    assert ui.errors == []


def maintain(deployment: Deployment) -> None:
    """Let the maintenance Dag run once."""
    deployment.api.unpause(MAINTENANCE)
    upkeep = StageRun(deployment, MAINTENANCE, f"upkeep-{deployment.next_number()}")
    upkeep.trigger()
    assert upkeep.wait_for_end() == "success", deployment.api.tasks(MAINTENANCE, upkeep.run_id)


def savepoints(run: JobRun) -> list[CheckpointRecord]:
    return [c for c in run.job().checkpoints if c.properties.is_savepoint]


def folder_of(checkpoint: CheckpointRecord) -> Path:
    return Path(checkpoint.location.removeprefix("file://"))


def test_a_user_takes_a_savepoint_stops_the_stage_with_another_one_and_disposes_of_it(
    pages: JobPages, run: JobRun, deployment: Deployment
) -> None:
    run.trigger()
    run.wait_for_step("numbers")
    pages.open()
    pages.act("Take a savepoint", told="Request queued")
    run.finish_step("numbers")
    run.wait_for_action(JobAction.SAVEPOINT, RequestStatus.COMPLETED)

    run.wait_for_step("doubled")
    pages.act("Stop with a savepoint", told="Request queued")
    run.finish_step("doubled")
    assert run.wait_for_end() == "failed", run.story()
    run.wait_for_action(JobAction.STOP, RequestStatus.COMPLETED)
    assert run.tries() == 1, "a stopped stage is not retried"
    assert run.computed() == ["numbers", "doubled"]
    first, second = savepoints(run)
    assert all(folder_of(each).exists() for each in (first, second))

    pages.open(second.checkpoint_id)
    pages.act("Dispose of the savepoint", told="Request queued")
    maintain(deployment)
    assert run.wait_for_action(JobAction.DISPOSE, RequestStatus.COMPLETED).checkpoint_id == second.checkpoint_id
    assert folder_of(first).exists()
    assert not folder_of(second).exists()
    pages.open()
    pages.request("Dispose of the savepoint", of=REQUESTS).filter(has_text="completed").wait_for()


def test_a_user_lets_the_next_try_restore_an_older_checkpoint(pages: JobPages, run: JobRun) -> None:
    run.trigger()
    for step in ("numbers", "doubled"):
        run.wait_for_step(step)
        run.finish_step(step)
    first_try = run.wait_for_step("total")

    pages.open(1)
    pages.act("Restore with the next attempt", told="Request queued")
    pages.open()
    pages.ui.page.get_by_text("The next attempt restores checkpoint 1, which a user chose.").wait_for()
    pages.act("Withdraw the chosen checkpoint", told="Request completed")
    assert run.job().operators[0].next_restore is None
    pages.open(1)
    dialog = pages.preview("Restore with the next attempt")
    assert "is running and is not stopped" in dialog.inner_text()
    dialog.get_by_role("link", name="Cancel").click()
    dialog.wait_for(state="hidden")
    assert run.job().operators[0].next_restore is None
    pages.act("Restore with the next attempt", told="Request queued")

    kill(first_try.jvm)
    run.finish()
    assert run.wait_for_end() == "success", run.story()
    first, second = run.job().attempts
    assert (first.restored_from, second.restored_from) == (None, 1)
    assert run.wait_for_action(JobAction.RESTORE, RequestStatus.COMPLETED).message == "attempt 2 restores checkpoint 1"
    assert run.computed() == [*STEPS, "doubled", "total"], "the step after the chosen checkpoint is done again"
    assert run.result() == TOTAL
    pages.open()
    pages.request("Restore with the next attempt", of=REQUESTS).filter(has_text="completed").wait_for()


def test_a_user_forks_with_other_params(pages: JobPages, run: JobRun, deployment: Deployment) -> None:
    run.finish()
    run.trigger()
    assert run.wait_for_end() == "success", run.story()
    before = run.job()

    fork = _fork(pages, run, deployment)
    assert run.job().checkpoints == before.checkpoints
    assert run.job().attempts == before.attempts
    assert deployment.api.result(run.dag_id, fork, "work") == TOTAL // 2 * 3
    assert run.computed() == [*STEPS, "doubled", "total"], "the fork restores the first step"
    [attempt] = deployment.job(f"{run.job_name}@{fork}").attempts
    assert attempt.restored_from is not None


def _fork(pages: JobPages, run: JobRun, deployment: Deployment) -> str:
    """Fork at the first checkpoint, with a wrong entry before the right one, and return the run."""
    pages.open(1)
    dialog = pages.preview("Fork from here")
    assert "nothing is deleted" in dialog.inner_text()
    params, outcome = dialog.get_by_label("Params of the run"), dialog.get_by_role("status")
    shown = json.loads(params.input_value())
    assert shown == {"control": str(run.folder), "job": run.job_name, "factor": 2}
    known = {each["dag_run_id"] for each in deployment.api.runs(run.dag_id)}
    for wrong, reason in (("{", "as a JSON object"), ('{"factor": 0}', "0 is less than the minimum of 1")):
        params.fill(wrong)
        dialog.get_by_role("button", name="Confirm").click()
        outcome.filter(has_text=reason).wait_for()
    assert {each["dag_run_id"] for each in deployment.api.runs(run.dag_id)} == known
    params.fill(json.dumps(shown | {"factor": 3}))
    dialog.get_by_role("button", name="Confirm").click()
    dialog.wait_for(state="hidden")
    [fork] = {str(each["dag_run_id"]) for each in deployment.api.runs(run.dag_id)} - known
    pages.ui.page.locator("#updates", has_text=f"run {fork} of Dag {run.dag_id} started").wait_for()
    assert wait_until("the fork", lambda: deployment.api.run_state(run.dag_id, fork) in ("success", "failed"))
    assert deployment.api.run_state(run.dag_id, fork) == "success"
    pages.open()
    row = pages.request("Fork from here", of=REQUESTS)
    address = row.get_by_role("link", name="Open the run in Airflow").get_attribute("href")
    assert address == f"/dags/{run.dag_id}/runs/{fork}"
    pages.ui.open(address)
    pages.ui.page.get_by_text(fork).first.wait_for()
    assert run.wait_for_action(JobAction.FORK, RequestStatus.COMPLETED).run_key == fork
    assert job_id_of(run.job_name) in pages.path
    return fork


def test_a_user_rewinds_and_removes_a_job(pages: JobPages, run: JobRun, deployment: Deployment) -> None:
    run.finish()
    run.trigger()
    assert run.wait_for_end() == "success", run.story()
    [before], folders = run.job().operators, [folder_of(each) for each in run.job().checkpoints]

    pages.open(1)
    pages.act("Rewind to before this run", told="Request completed, 3 checkpoints rolled back")
    assert run.job().operators[0].generation == before.generation + 1, "the next run starts without state"
    pages.open()
    pages.request("Rewind to before this run", of=REQUESTS).filter(has_text="completed").wait_for()

    pages.act("Remove the job", told="Request queued")
    maintain(deployment)
    with pytest.raises(CheckpointNotFoundError):
        run.job()
    assert not any(folder.exists() for folder in folders)
    pages.ui.page.locator("#updates", has_text="the job was removed as requested").wait_for()
