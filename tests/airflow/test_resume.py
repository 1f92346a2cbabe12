"""Tries of a real task under Airflow, each in a process of its own, with real trouble."""

from __future__ import annotations

import os
import select
import signal
import time
from pathlib import Path

import pytest

from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from tests.airflow.conftest import Airflow

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.soak]

RESUMED = ["numbers", "item a", "item b", "item b", "item c"]


def test_dag_test_replaces_a_killed_jvm_and_its_retry_resumes(airflow: Airflow) -> None:
    assert airflow.test_dag("decorated", "2026-01-01T00:00:00+00:00", trouble="kill the JVM") == 0, airflow.output
    assert airflow.computed() == RESUMED
    view = airflow.job("test/decorated/2026-01-01T00:00:00+00:00")
    assert [a.status for a in view.attempts] == [AttemptStatus.FAILED, AttemptStatus.FINISHED]
    assert "retains checkpoint" in airflow.output
    assert "The driver's JVM died" in airflow.output
    assert "DriverLostError" in view.attempts[0].message


def test_second_tasks_test_of_one_date_resumes_in_the_test_namespace(airflow: Airflow) -> None:
    # Airflow itself ends with 0 when a task fails under "tasks test".
    command = ("tasks", "test", "classic", "work", "2026-01-02")
    airflow.run("dags", "reserialize")
    airflow.run(*command, trouble="raise")
    assert airflow.computed() == RESUMED[:3], airflow.output
    airflow.run(*command)
    assert airflow.computed() == RESUMED, airflow.output
    view = airflow.job("test/classic/2026-01-02T00:00:00+00:00")
    assert [a.status for a in view.attempts] == [AttemptStatus.FAILED, AttemptStatus.FINISHED]
    assert view.attempts[1].restored_from is not None


def test_dags_test_retries_and_resumes(airflow: Airflow) -> None:
    assert airflow.run("dags", "test", "decorated", "2026-01-03", trouble="raise") == 0, airflow.output
    assert airflow.computed() == RESUMED


def test_execution_timeout_closes_the_attempt_within_seconds_and_the_retry_resumes(airflow: Airflow) -> None:
    status = airflow.test_dag("decorated", "2026-01-04T00:00:00+00:00", trouble="run into the timeout")
    assert status == 0, airflow.output
    assert [step for step in airflow.computed() if step != "waiting"] == RESUMED
    first = airflow.job("test/decorated/2026-01-04T00:00:00+00:00").attempts[0]
    assert first.status is AttemptStatus.FAILED
    assert "AirflowTaskTimeout" in first.message
    assert first.ended_at is not None
    assert (first.ended_at - first.registered_at).total_seconds() < 30 + 5


def test_sigterm_closes_the_attempt_within_seconds_and_the_retry_resumes(airflow: Airflow) -> None:
    process = airflow.start_dag_test("decorated", "2026-01-05T00:00:00+00:00", trouble="wait for a signal")
    _wait_until_computing(airflow, process.stdout)
    sent = time.time()
    os.kill(process.pid, signal.SIGTERM)
    assert airflow.finish(process) == 0, airflow.output
    assert [step for step in airflow.computed() if step != "waiting"] == RESUMED
    first = airflow.job("test/decorated/2026-01-05T00:00:00+00:00").attempts[0]
    assert "StageTerminatedError" in first.message
    assert first.ended_at is not None
    assert first.ended_at.timestamp() - sent < 5


def test_two_tasks_of_one_job_with_one_uid_are_refused_before_they_start(airflow: Airflow) -> None:
    assert airflow.test_dag("shared_uid", "2026-01-06T00:00:00+00:00") == 1
    assert "give one of them another uid" in airflow.output
    assert airflow.computed() == []


def test_mapped_task_without_a_map_key_is_refused(airflow: Airflow) -> None:
    assert airflow.test_dag("mapped", "2026-01-07T00:00:00+00:00") == 1
    assert "Expected map_key" in airflow.output
    assert airflow.computed() == []


HOOK = """
from airflow_provider_statecheck.hooks.statecheck import StatecheckHook
hook, job = StatecheckHook(), "test/classic/2026-01-08T00:00:00+00:00"
latest = hook.latest(job, "work")
assert job in [record.name for record in hook.jobs()]
assert hook.checkpoints(job, "work")[-1] == latest
assert hook.restore_pointer(job, "work") == latest.location
print("POINTER", latest.location)
"""


def test_hook_shows_jobs_checkpoints_and_the_restore_pointer(airflow: Airflow) -> None:
    assert airflow.test_dag("classic", "2026-01-08T00:00:00+00:00") == 0, airflow.output
    assert airflow.finish(airflow.start("-c", HOOK)) == 0, airflow.output
    pointer = next(line for line in airflow.output.splitlines() if line.startswith("POINTER")).split()[1]
    assert pointer.startswith("file://")
    assert [path.name for path in Path(pointer.removeprefix("file://")).iterdir()] == ["_metadata"]


def _wait_until_computing(airflow: Airflow, output) -> None:
    """Read the process's output until the stage is inside the long Spark job."""
    while "waiting" not in airflow.computed():
        ready, _, _ = select.select([output], [], [], 120)
        assert ready, "the stage did not begin"
        os.read(output.fileno(), 65536)  # not by lines, for select does not see what a reader of lines holds back
