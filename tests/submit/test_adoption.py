"""A driver in the cluster that outlives its Airflow task, and a task that is told to end."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from tests.submit.conftest import Pipeline
from tests.submit.traces import is_shown_nowhere, token_of_driver


@pytest.mark.soak
def test_driver_goes_on_after_its_task_died_and_the_retry_adopts_it(pipeline, cluster) -> None:
    stage: Pipeline = pipeline("cluster", "wait")
    task = _start_and_remember_driver(stage)
    token = token_of_driver(_pid_of_driver(stage))
    is_shown_nowhere(token, [*_pages_of_driver(stage), *cluster.pages], [cluster.folder, stage.work])
    _kill(stage, task)

    stage.go("a")
    stage.wait_until((stage.work / "trouble-b").exists)
    assert sum(c.is_restorable for c in stage.job().checkpoints) == 2, "one was completed while no task was there"

    retry = stage.start()
    stage.wait_until(lambda: stage.job().attempts[-1].owner.label.endswith("try 2"))
    stage.go("b", "c")
    assert stage.finish(retry) == 0, stage.output
    assert "its driver was adopted" in stage.output
    assert stage.computed() == ["numbers", "item a", "item b", "item c"]
    assert [a.status for a in stage.job().attempts] == [AttemptStatus.FINISHED]
    is_shown_nowhere(token, cluster.pages, [cluster.folder, stage.work])


@pytest.mark.soak
def test_adopted_driver_that_dies_is_closed_by_the_retry_which_says_what_was_kept(pipeline, cluster) -> None:
    stage: Pipeline = pipeline("cluster", "wait")
    _kill(stage, _start_and_remember_driver(stage))
    retry = stage.start()
    stage.wait_until(lambda: stage.job().attempts[-1].owner.label.endswith("try 2"))
    os.kill(_pid_of_driver(stage), signal.SIGKILL)
    assert stage.finish(retry) != 0
    assert "retains checkpoint 1: 1 snapshot, 0 finished items" in stage.output
    stage.go("b", "c")
    assert stage.run() == 0, stage.output
    assert [a.status for a in stage.job().attempts] == [AttemptStatus.FAILED, AttemptStatus.FINISHED]


@pytest.mark.soak
def test_task_that_is_cleared_after_success_submits_again_and_starts_over(pipeline, cluster) -> None:
    stage: Pipeline = pipeline("cluster", "none")
    assert stage.run() == 0, stage.output
    assert stage.run() == 0, stage.output
    assert "already completed successfully" in stage.output
    assert len(stage.computed()) == 4
    stage.max_tries += 1
    assert stage.run() == 0, stage.output
    assert len(stage.computed()) == 8


@pytest.mark.soak
def test_token_of_a_driver_in_client_mode_is_shown_nowhere(pipeline, cluster) -> None:
    stage: Pipeline = pipeline("client", "wait")
    task = _start(stage)
    token = token_of_driver(_pid_of_driver(stage))
    is_shown_nowhere(token, [*_pages_of_driver(stage), *cluster.pages], [cluster.folder, stage.work])
    stage.go("a", "b", "c")
    assert stage.finish(task) == 0, stage.output


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["local", "cluster"])
def test_task_that_is_told_to_end_ends_its_driver_and_closes_the_attempt(pipeline, mode: str) -> None:
    stage: Pipeline = pipeline(mode, "wait")
    task = _start_and_remember_driver(stage) if mode == "cluster" else _start(stage)
    os.killpg(task.pid, signal.SIGTERM)
    assert stage.finish(task) != 0
    assert "retains checkpoint 1" in stage.output
    assert [a.status for a in stage.job().attempts] == [AttemptStatus.FAILED]
    stage.go("b", "c")
    assert stage.run() == 0, stage.output
    assert stage.computed() == ["numbers", "item a", "item a", "item b", "item c"]


def _start(stage: Pipeline) -> subprocess.Popen[str]:
    task = stage.start()
    stage.wait_until((stage.work / "trouble-a").exists)
    return task


def _start_and_remember_driver(stage: Pipeline) -> subprocess.Popen[str]:
    task = _start(stage)
    store = stage.work / "store.json"
    stage.wait_until(lambda: store.exists() and "spark_job_id" in store.read_text())
    return task


def _kill(stage: Pipeline, task: subprocess.Popen[str]) -> None:
    os.kill(task.pid, signal.SIGKILL)
    stage.finish(task)


def _pid_of_driver(stage: Pipeline) -> int:
    return int((stage.work / "trouble-a").read_text())


def _pages_of_driver(stage: Pipeline) -> list[str]:
    page = (stage.work / "page").read_text()
    return [f"{page}/environment/", f"{page}/executors/"]
