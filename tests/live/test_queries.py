"""
Queries of a job's state: by a task, by users of Airflow, and with a read token, at the api-server of a whole Airflow.
"""

from __future__ import annotations

from urllib.parse import urlencode

import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.exceptions import AccessDeniedError
from airflow_provider_statecheck.queryable.client import QueryableStateClient
from tests.live.deployment import ADMIN, STRANGER, Deployment
from tests.live.runs import StageRun

pytestmark = [pytest.mark.live, pytest.mark.soak]

JOB, NAME = "live_balances", "balances"
PATH = f"jobs/{job_id_of(JOB)}"


@pytest.fixture(scope="module")
def run(deployment: Deployment) -> StageRun:
    """Return a run that has ended: a stage with state, and a task that asked for some of it."""
    deployment.ensure_running()
    run = StageRun(deployment, "live_queries", "queried")
    run.trigger()
    assert run.wait_for_end() == "success", run.story()
    return run


def balance_for(deployment: Deployment, token: str, job: str = JOB) -> int:
    """Return the balance of one account as a service reads it."""
    with QueryableStateClient(deployment.api.url, token) as client:
        balance: int = client.get(job, NAME, "a1").value
        return balance


def test_task_reads_state_of_the_stage_before_it(deployment: Deployment, run: StageRun) -> None:
    assert deployment.api.result(run.dag_id, run.run_id, "ask") == {"a0": 42, "a2": 42}


def test_user_who_may_read_the_dag_reads_its_state_and_its_newest_checkpoints(
    deployment: Deployment, run: StageRun
) -> None:
    reply = deployment.api.ask("GET", f"{PATH}/state/{NAME}?key=a1").raise_for_status().json()
    assert reply["entries"] == [{"key": "a1", "value": 42}]
    latest = deployment.api.ask("GET", f"{PATH}/latest").raise_for_status().json()
    assert [c["checkpoint_id"] for c in latest["checkpoints"]] == [reply["checkpoint_id"]]
    known = urlencode({"known_version": latest["job"]["version"], "seen_at": latest["job"]["seen_at"]})
    assert deployment.api.ask("GET", f"{PATH}/latest?{known}").raise_for_status().json() is None
    assert balance_for(deployment, deployment.api.token_of(*ADMIN)) == 42


def test_read_token_reads_the_state_of_its_job_and_of_no_other(deployment: Deployment, run: StageRun) -> None:
    body = {"job_id": job_id_of(JOB), "lifetime_seconds": 60}
    token = deployment.api.ask("POST", "token/state", body=body).raise_for_status().json()["token"]
    assert balance_for(deployment, token) == 42
    assert deployment.api.ask("GET", f"{PATH}/latest", token).is_success
    with pytest.raises(AccessDeniedError):
        balance_for(deployment, token, job="another job")


def test_user_who_may_not_read_the_dag_gets_neither_state_nor_a_token(deployment: Deployment, run: StageRun) -> None:
    token = deployment.api.token_of(*STRANGER)
    replies = [
        deployment.api.ask("GET", f"{PATH}/state/{NAME}?key=a1", token),
        deployment.api.ask("GET", f"{PATH}/latest", token),
        deployment.api.ask("POST", "token/state", token, {"job_id": job_id_of(JOB)}),
    ]
    assert [(reply.status_code, reply.json()["code"]) for reply in replies] == [(404, "checkpoint_not_found")] * 3
