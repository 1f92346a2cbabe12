"""Drivers that Amazon's services run, submitted with the hooks of Airflow's provider."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from airflow.providers.amazon.aws.hooks.emr import EmrContainerHook, EmrHook, EmrServerlessHook
from airflow.providers.amazon.aws.hooks.glue import GlueJobHook

from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.payloads.additions import Additions
from airflow_provider_statecheck.payloads.emr import container_job_with, serverless_job_with, steps_with
from airflow_provider_statecheck.payloads.glue import run_with
from tests.services.amazon import ROLE
from tests.services.kinds import serve_amazon
from tests.services.task import APPLICATION, RESUMED, Task

GLUE_SCRIPT = f"""
import runpy, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
sys.argv = [sys.argv[0], given["--work"], given["--trouble"], "--statecheck-mailbox", given["--statecheck-mailbox"]]
runpy.run_path({str(APPLICATION)!r}, run_name="__main__")
"""
ENDED = ("COMPLETED", "SUCCESS", "SUCCEEDED", "FAILED", "CANCELLED", "STOPPED")


@dataclass
class Service:
    """How a job is submitted, how far it is, and how it is ended."""

    submit: Callable[[Task, Additions], Any]
    state: Callable[[Any], str]
    cancel: Callable[[Any], Any]

    def has_ended(self, job: Any) -> bool:
        """Return whether a job has ended."""
        return self.state(job) in ENDED


@pytest.fixture
def services(connections, drivers) -> Iterator[None]:
    with serve_amazon(connections, drivers):
        yield


def steps() -> Service:
    hook = EmrHook()
    cluster = hook.conn.run_job_flow(
        Name="nightly",
        Instances={"InstanceCount": 1, "KeepJobFlowAliveWhenNoSteps": True, "MasterInstanceType": "m7g.xlarge"},
        JobFlowRole="jobs",
        ServiceRole="jobs",
    )["JobFlowId"]

    def submit(task: Task, additions: Additions) -> str:
        words = ["spark-submit", "--deploy-mode", "cluster", task.script, *task.arguments]
        copying = {"Name": "copy", "HadoopJarStep": {"Jar": "command-runner.jar", "Args": ["s3-dist-cp"]}}
        step = {"Name": "totals", "HadoopJarStep": {"Jar": "command-runner.jar", "Args": words}}
        return hook.add_job_flow_steps(cluster, steps_with([copying, step], additions))[1]

    def state(step: str) -> str:
        return str(hook.conn.describe_step(ClusterId=cluster, StepId=step)["Step"]["Status"]["State"])

    return Service(submit, state, lambda step: hook.conn.cancel_steps(ClusterId=cluster, StepIds=[step]))


def on_eks() -> Service:
    provider = {"id": "eks", "type": "EKS", "info": {"eksInfo": {"namespace": "etl"}}}
    cluster = EmrContainerHook().conn.create_virtual_cluster(name="etl", containerProvider=provider)["id"]
    hook = EmrContainerHook(virtual_cluster_id=cluster)

    def submit(task: Task, additions: Additions) -> str:
        driver = {"sparkSubmitJobDriver": {"entryPoint": task.script, "entryPointArguments": task.arguments}}
        return hook.submit_job("totals", ROLE, "emr-7.9.0-latest", container_job_with(driver, additions))

    return Service(submit, lambda job: str(hook.check_query_status(job)), hook.stop_query)


def serverless() -> Service:
    hook = EmrServerlessHook()
    application = hook.conn.create_application(name="etl", releaseLabel="emr-8.0.0", type="SPARK")["applicationId"]

    def submit(task: Task, additions: Additions) -> str:
        driver = {"sparkSubmit": {"entryPoint": task.script, "entryPointArguments": task.arguments}}
        return str(
            hook.conn.start_job_run(
                applicationId=application,
                executionRoleArn=ROLE,
                jobDriver=serverless_job_with(driver, additions),
            )["jobRunId"]
        )

    def state(job: str) -> str:
        return str(hook.conn.get_job_run(applicationId=application, jobRunId=job)["jobRun"]["state"])

    return Service(submit, state, lambda job: hook.conn.cancel_job_run(applicationId=application, jobRunId=job))


def glue() -> Service:
    hook = GlueJobHook(job_name="totals")

    def submit(task: Task, additions: Additions) -> str:
        script = task.work / "glue.py"
        script.write_text(GLUE_SCRIPT)
        if not hook.has_job("totals"):
            command = {"Name": "glueetl", "ScriptLocation": script.as_uri()}
            hook.conn.create_job(Name="totals", Role="jobs", Command=command)
        given = {"--work": str(task.work), "--trouble": task.trouble, "--conf": "spark.a=1 --conf spark.b=2"}
        return str(hook.conn.start_job_run(JobName="totals", Arguments=run_with(given, additions))["JobRunId"])

    def cancel(run: str) -> None:
        hook.conn.batch_stop_job_run(JobName="totals", JobRunIds=[run])

    return Service(submit, lambda run: hook.get_job_state("totals", run), cancel)


SERVICES = {"steps": steps, "EKS": on_eks, "serverless": serverless, "Glue": glue}
EACH = pytest.mark.parametrize("make", SERVICES.values(), ids=SERVICES)
pytestmark = pytest.mark.soak


@EACH
def test_job_that_is_killed_goes_on_in_the_next_try(
    task: Task, services: None, make: Callable[[], Service], drivers
) -> None:
    service = make()
    task.trouble = "kill driver"
    for end, states in (
        (AttemptStatus.FAILED, ["FAILED"]),
        (AttemptStatus.FINISHED, ["COMPLETED", "SUCCESS", "SUCCEEDED"]),
    ):
        with task.next_try(end) as additions:
            job = service.submit(task, additions)
            task.wait_until(partial(service.has_ended, job))
            assert service.state(job) in states
    assert task.computed == RESUMED
    assert [each.status for each in task.attempts] == [AttemptStatus.FAILED, AttemptStatus.FINISHED]
    assert "/airflow_provider_statecheck-" in task.imported_from


@EACH
def test_job_that_is_cancelled_has_ended(task: Task, services: None, make: Callable[[], Service], drivers) -> None:
    service = make()
    task.trouble = "wait"
    with task.next_try(AttemptStatus.FAILED) as additions:
        job = service.submit(task, additions)
        task.wait_until((task.work / "trouble-a").exists)
        assert service.state(job) == "RUNNING"
        service.cancel(job)
    assert service.state(job) in ("CANCELLED", "STOPPED")
    assert drivers.state(1) == "cancelled"
