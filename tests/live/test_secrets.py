"""A secret in the error of a task, looked for wherever the error is told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine, inspect
from sqlalchemy.pool import NullPool

from tests import leaks
from tests.live.deployment import LEDGER_PASSWORD, Deployment
from tests.live.runs import StageRun

pytestmark = [pytest.mark.live, pytest.mark.soak]

TOLD = b"cannot log in as bookkeeper with ***"


@pytest.fixture
def run(deployment: Deployment) -> StageRun:
    """Return a run whose task has failed with the secret in its error."""
    deployment.ensure_running()
    run = StageRun(deployment, "live_secrets", "secrets")
    run.trigger()
    assert run.wait_for_end() == "failed"
    return run


def _rows(deployment: Deployment) -> Iterator[leaks.Place]:
    engine = create_engine(deployment.postgres.url, poolclass=NullPool)
    yield from leaks.rows(engine, set(inspect(engine).get_table_names()))


def _pages(run: StageRun) -> Iterator[leaks.Place]:
    job, operator = run.job().job.job_id, run.job().operators[0].operator_id
    for path in ("/jobs", f"/jobs/{job}", f"/jobs/{job}/operators/{operator}", f"/dags/{run.dag_id}"):
        yield leaks.Place(f"page {path}", run.deployment.api.page(path).content)
    yield leaks.Place("job list", run.deployment.api.ask("GET", "job-list").raise_for_status().content)


def _command(deployment: Deployment, *arguments: str) -> leaks.Place:
    command = [sys.executable, "-m", "airflow", "statecheck", *arguments]
    done = subprocess.run(command, env=deployment.environment, capture_output=True, timeout=120, check=True)
    return leaks.Place(f"command {arguments[0]}", done.stdout + done.stderr)


def test_a_secret_of_a_connection_is_masked_wherever_the_error_of_a_task_is_told(run: StageRun) -> None:
    deployment = run.deployment
    folder = deployment.folder
    # The output of a scheduler is Airflow's own: it repeats the errors of its tasks as they are.
    logs = list(leaks.files(folder / "home" / "logs"))
    rows, pages = list(_rows(deployment)), list(_pages(run))
    commands = [_command(deployment, "jobs", "--output", "json"), _command(deployment, "stats", run.job().job.name)]
    told = [[place for place in places if TOLD in place.content] for places in (logs, rows, pages, commands)]
    assert all(told), "the error is told in the log, in a row, on a page and by a command"
    assert leaks.find([LEDGER_PASSWORD], [*logs, *rows, *pages, *commands, *leaks.files(folder / "checkpoints")]) == []
