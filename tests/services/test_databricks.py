"""Drivers that Databricks runs, submitted with the hook of Airflow's provider."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.providers.databricks.hooks.databricks import DatabricksHook, RunState

from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.payloads.additions import Additions
from airflow_provider_statecheck.payloads.databricks import job_run_with, submitted_run_with
from tests.services.kinds import serve_databricks
from tests.services.task import RESUMED, Task

pytestmark = pytest.mark.soak
CLUSTER = {"spark_version": "17.3.x-scala2.13", "num_workers": 2, "spark_conf": {"spark.speculation": "false"}}
NOTEBOOK = """
from pathlib import Path
import airflow_provider_statecheck
from airflow_provider_statecheck import StageContext
work = Path({work!r})
with StageContext.current(spark, mailbox=dbutils.widgets.get("statecheck-mailbox")) as checkpoint:
    numbers = checkpoint.snapshot("numbers", lambda: spark.range(100))
    (work / "result").write_text(str(numbers.count()))
(work / "package").write_text(airflow_provider_statecheck.__file__)
"""


@pytest.fixture
def serve(connections, drivers) -> Any:
    def serve(jobs: dict[int, Any] | None = None) -> DatabricksHook:
        serve_databricks(connections, drivers, jobs)
        return DatabricksHook()

    return serve


def ended(task: Task, hook: DatabricksHook, run: int) -> RunState:
    task.wait_until(lambda: hook.get_run_state(run).is_terminal)
    return hook.get_run_state(run)


def script_of(task: Task) -> dict[str, Any]:
    return {"spark_python_task": {"python_file": task.script, "parameters": task.arguments}}


def test_script_on_a_new_cluster_that_is_killed_goes_on_in_the_next_try(task: Task, serve) -> None:
    hook = serve()
    task.trouble = "kill driver"
    run = {"new_cluster": CLUSTER, **script_of(task)}
    with task.next_try(AttemptStatus.FAILED) as additions:
        first = hook.submit_run(submitted_run_with(run, additions))
        assert ended(task, hook, first).result_state == "FAILED"
    with task.next_try() as additions:
        second = hook.submit_run(submitted_run_with(run, additions))
        assert ended(task, hook, second).is_successful, hook.get_run_output(second)["logs"]
    assert task.computed == RESUMED
    assert [each.status for each in task.attempts] == [AttemptStatus.FAILED, AttemptStatus.FINISHED]
    assert Path(task.imported_from).parents[1].name.startswith("libraries-")


PLACES: dict[str, dict[str, Any]] = {
    "existing cluster": {"existing_cluster_id": "c"},
    "serverless": {
        "environment_key": "default",
        "environments": [{"environment_key": "default", "spec": {"environment_version": "4"}}],
    },
}


@pytest.mark.parametrize("place", PLACES)
def test_script_without_properties_finds_the_mailbox_in_its_arguments(task: Task, serve, place: str) -> None:
    hook = serve()
    with task.next_try() as additions:
        run = hook.submit_run(submitted_run_with({**PLACES[place], **script_of(task)}, additions))
        assert ended(task, hook, run).is_successful, hook.get_run_output(run)["logs"]
    assert (task.work / "result").read_text() == "300"
    assert "libraries-" in task.imported_from


def test_notebook_gives_the_mailbox_of_its_parameter(task: Task, serve) -> None:
    hook = serve()
    notebook = task.work / "totals"
    notebook.write_text(NOTEBOOK.format(work=str(task.work)))
    run = {"existing_cluster_id": "c", "notebook_task": {"notebook_path": str(notebook)}}
    with task.next_try() as additions:
        number = hook.submit_run(submitted_run_with(run, additions))
        assert ended(task, hook, number).is_successful, hook.get_run_output(number)["logs"]
    assert (task.work / "result").read_text() == "100"


@pytest.mark.parametrize("parameters", ["job_parameters", "python_params"])
def test_run_of_a_job_gets_the_mailbox_as_a_parameter(task: Task, serve, parameters: str) -> None:
    reference = "--statecheck-mailbox={{job.parameters.`statecheck-mailbox`}}"
    script = {"python_file": task.script, "parameters": [*task.arguments, reference]}
    hook = serve({7: {"name": "totals", "tasks": [{"task_key": "t", "spark_python_task": script}]}})
    given = {"python_params": task.arguments} if parameters == "python_params" else {}
    with task.next_try() as additions:
        run = hook.run_now(job_run_with({"job_id": 7, **given}, Additions(mailbox=additions.mailbox)))
        assert ended(task, hook, run).is_successful, hook.get_run_output(run)["logs"]
    assert (task.work / "result").read_text() == "300"
    assert hook.get_job_id(run) == hook.find_job_id_by_name("totals") == 7


def test_run_with_a_token_is_submitted_once_and_ends_when_it_is_cancelled(task: Task, serve) -> None:
    hook = serve()
    task.trouble = "wait"
    with task.next_try(AttemptStatus.FAILED) as additions:
        payload = {"idempotency_token": "job-1", "new_cluster": CLUSTER, **script_of(task)}
        run = hook.submit_run(submitted_run_with(payload, additions))
        assert hook.submit_run(submitted_run_with(payload, additions)) == run
        task.wait_until((task.work / "trouble-a").exists)
        hook.cancel_run(run)
    assert ended(task, hook, run).result_state == "CANCELED"
