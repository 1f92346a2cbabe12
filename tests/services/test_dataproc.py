"""Drivers that Dataproc runs, submitted with the hook of Google's provider, where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.payloads.additions import Additions
from airflow_provider_statecheck.payloads.dataproc import batch_with, job_with
from tests.services.kinds import serve_dataproc
from tests.services.task import RESUMED, Task

hooks = pytest.importorskip("airflow.providers.google.cloud.hooks.dataproc", reason="Google's provider is missing")
PLACE = {"region": "europe-west1", "project_id": "shop"}
ENDED = ("DONE", "ERROR", "CANCELLED", "SUCCEEDED", "FAILED")


pytestmark = pytest.mark.soak


@pytest.fixture
def hook(connections, drivers) -> Iterator[Any]:
    with serve_dataproc(connections, drivers):
        yield hooks.DataprocHook()


def submit_job(hook: Any, task: Task, additions: Additions) -> Callable[[], str]:
    pyspark = {"main_python_file_uri": task.script, "args": task.arguments}
    job = {"placement": {"cluster_name": "nightly"}, "pyspark_job": pyspark}
    job_id = hook.submit_job(job=job_with(job, additions), **PLACE).reference.job_id
    return lambda: str(hook.get_job(job_id=job_id, **PLACE).status.state.name)


def create_batch(hook: Any, task: Task, additions: Additions) -> Callable[[], str]:
    batch = {"pyspark_batch": {"main_python_file_uri": task.script, "args": task.arguments}}
    operation = hook.create_batch(batch=batch_with(batch, additions), batch_id=None, **PLACE)
    name = operation.metadata.batch.rpartition("/")[2]
    return lambda: str(hook.get_batch(batch_id=name, **PLACE).state.name)


def has_ended(state: Callable[[], str]) -> bool:
    return state() in ENDED


@pytest.mark.parametrize("submit", [submit_job, create_batch])
def test_job_that_is_killed_goes_on_in_the_next_try(hook: Any, task: Task, submit: Callable[..., Any]) -> None:
    task.trouble = "kill driver"
    for end, states in ((AttemptStatus.FAILED, ("ERROR", "FAILED")), (AttemptStatus.FINISHED, ("DONE", "SUCCEEDED"))):
        with task.next_try(end) as additions:
            state = submit(hook, task, additions)
            task.wait_until(partial(has_ended, state))
            assert state() in states
    assert task.computed == RESUMED
    assert [each.status for each in task.attempts] == [AttemptStatus.FAILED, AttemptStatus.FINISHED]
    assert "/airflow_provider_statecheck-" in task.imported_from


def test_job_that_is_cancelled_has_ended(hook: Any, task: Task) -> None:
    task.trouble = "wait"
    with task.next_try(AttemptStatus.FAILED) as additions:
        state = submit_job(hook, task, additions)
        task.wait_until((task.work / "trouble-a").exists)
        assert state() == "RUNNING"
        hook.cancel_job(job_id="job-0", **PLACE)
    assert state() == "CANCELLED"
