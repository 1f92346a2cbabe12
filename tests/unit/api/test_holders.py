"""
What a task may read and work on: jobs of its own Dag, and those of others by the configuration and by their teams.
"""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from tests.unit.api.server import CALLER, JOB, MAINTENANCE, OTHER_DAG, ApiServer, accepted, recover, registration

NAMED, SHARED, THEIRS, RECOVERED = "sales", "shared", "hourly/2026-01-01", "lost"
JOBS = (JOB, SHARED, NAMED, THEIRS, RECOVERED)
OWN = {JOB, SHARED}


@pytest.fixture
def jobs(api: ApiServer) -> ApiServer:
    """Jobs of the Dag, of both Dags, of the other Dag, and one whose Dag is unknown."""
    api.attempt()
    api.attempt(SHARED)
    for job in (SHARED, NAMED, THEIRS):
        api.attempt(job, "another uid", OTHER_DAG)
    recover(api.services.rows, RECOVERED, "features")
    return api


def readable(api: ApiServer, caller: Any = CALLER) -> set[str]:
    """Return the names of the jobs that a task can read, after checking that the list has the same."""
    token = api.task_token(caller)
    found = {job for job in JOBS if api.call("GET", f"/v1/jobs/{job_id_of(job)}", token).status_code == 200}
    assert {job["name"] for job in accepted(api.call("GET", "/v1/jobs", token))} == found
    return found


def test_a_task_reads_all_jobs_by_default(jobs: ApiServer) -> None:
    assert readable(jobs) == set(JOBS)


def test_with_the_option_off_a_task_reads_only_jobs_of_its_dag_and_maintenance_all(jobs: ApiServer) -> None:
    jobs.reads_other_jobs = False
    assert readable(jobs) == OWN
    assert readable(jobs, MAINTENANCE) == set(JOBS)
    reply = jobs.call("GET", f"/v1/jobs/{job_id_of(NAMED)}", jobs.task_token())
    assert (reply.status_code, "read_other_jobs" in reply.json()["message"]) == (403, True)


def test_a_read_token_reads_no_more_than_its_task(jobs: ApiServer) -> None:
    tokens = {job: jobs.reading_token(job_id_of(job)) for job in (JOB, NAMED)}
    jobs.reads_other_jobs = False
    found = {job: jobs.call("GET", f"/v1/jobs/{job_id_of(job)}", token).status_code for job, token in tokens.items()}
    assert found == {JOB: 200, NAMED: 403}


def test_a_read_token_may_be_of_a_job_that_does_not_exist_yet(jobs: ApiServer) -> None:
    jobs.reads_other_jobs = False
    job_id = job_id_of("nightly/tomorrow")
    token = jobs.reading_token(job_id)
    assert jobs.call("GET", f"/v1/jobs/{job_id}", token).status_code == 404
    jobs.attempt("nightly/tomorrow")
    accepted(jobs.call("GET", f"/v1/jobs/{job_id}", token))


def test_with_teams_a_task_reads_only_jobs_of_its_team_and_maintenance_all(jobs: ApiServer) -> None:
    jobs.tasks.teams = {"nightly": "red", "hourly": "blue"}
    assert readable(jobs) == {JOB}
    assert readable(jobs, MAINTENANCE) == set(JOBS)
    jobs.tasks.teams = {"nightly": "red", "hourly": "red"}
    assert readable(jobs) == {JOB, SHARED, NAMED, THEIRS}


def test_with_teams_a_task_joins_and_leads_no_job_of_another_team(jobs: ApiServer) -> None:
    jobs.tasks.teams = {"nightly": "red", "hourly": "blue"}
    before = jobs.rows()["statecheck_attempt"]
    for path in ("attempts/register", "aligned/lead"):
        message = registration(NAMED)
        if path == "aligned/lead":
            names = ("job_name", "attempt_key", "owner", "storage_base")
            message = {name: message[name] for name in names}
        reply = jobs.call("POST", f"/v1/{path}", jobs.task_token(), message)
        assert (reply.status_code, reply.json()["code"]) == (403, "access_denied")
    assert jobs.rows()["statecheck_attempt"] == before
    jobs.attempt("a new job")
    jobs.tasks.teams = {"nightly": "red", "hourly": "red"}
    jobs.attempt(NAMED)


def test_a_token_that_is_not_bound_ends_with_its_task_and_that_of_an_attempt_does_not(jobs: ApiServer) -> None:
    free, reader, attempt = jobs.task_token(), jobs.reading_token(job_id_of(JOB)), jobs.attempt("another job")
    jobs.tasks.is_over.add(CALLER)
    for token in (free, reader):
        reply = jobs.call("GET", f"/v1/jobs/{job_id_of(JOB)}", token)
        assert (reply.status_code, reply.json()["code"]) == (403, "access_denied")
    assert jobs.post("register", free, registration()).status_code == 403
    jobs.trigger(attempt)
