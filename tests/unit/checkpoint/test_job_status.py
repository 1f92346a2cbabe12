"""Which of Airflow's states means which end of a job."""

from __future__ import annotations

import pytest
from airflow.sdk.api.datamodels._generated import TaskInstanceState
from airflow.utils.state import DagRunState

from airflow_provider_statecheck.checkpoint.properties import JobStatus, job_status_of


@pytest.mark.parametrize(
    ("state", "is_by_a_person", "status"),
    [
        ("success", False, JobStatus.FINISHED),
        ("success", True, JobStatus.FINISHED),
        ("failed", False, JobStatus.FAILED),
        ("failed", True, JobStatus.CANCELED),
        (None, False, JobStatus.CANCELED),
        ("running", True, JobStatus.SUSPENDED),
        ("queued", False, JobStatus.SUSPENDED),
        ("deferred", False, JobStatus.SUSPENDED),
        ("up_for_retry", False, JobStatus.SUSPENDED),
        ("restarting", False, JobStatus.SUSPENDED),
    ],
)
def test_a_state_of_airflow_means_an_end_of_the_job(state: str | None, is_by_a_person: bool, status: JobStatus) -> None:
    assert job_status_of(state, is_by_a_person=is_by_a_person) is status


@pytest.mark.parametrize("state", list(DagRunState))
def test_each_state_of_a_run_is_known(state: DagRunState) -> None:
    is_over = state in (DagRunState.SUCCESS, DagRunState.FAILED)
    assert job_status_of(state.value).is_globally_terminal is is_over


@pytest.mark.parametrize(
    "state", sorted(set(TaskInstanceState) - {"success", "failed", "removed", "upstream_failed", "skipped"})
)
def test_a_task_that_waits_never_ends_its_job(state: str) -> None:
    assert job_status_of(state) is JobStatus.SUSPENDED


@pytest.mark.parametrize("state", ["", "skipped", "a state of tomorrow"])
def test_an_unknown_state_does_not_end_the_job(state: str) -> None:
    assert job_status_of(state) is JobStatus.SUSPENDED


def test_only_a_suspended_job_goes_on() -> None:
    assert [each for each in JobStatus if not each.is_globally_terminal] == [JobStatus.SUSPENDED]
