"""A sensor under Airflow, while another process completes what it waits for."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import Popen
from typing import Any

import pytest
from sqlalchemy import create_engine

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from tests.airflow.conftest import LIMIT_SECONDS, Airflow
from tests.messages import complete_checkpoint, make_registration

pytestmark = [pytest.mark.airflow, pytest.mark.soak]

UID = "part[north]"
LOOKING, WAITING = "Checking for", "Waiting for"


@contextmanager
def coordinator_of(airflow: Airflow) -> Iterator[AttemptCoordinator]:
    engine = create_engine(f"sqlite:///{airflow.home}/airflow.db", connect_args={"timeout": 60})
    try:
        yield AttemptCoordinator(SqlJobStore(engine))
    finally:
        engine.dispose()


def begin(coordinator: AttemptCoordinator, job: str) -> AttemptRef:
    return coordinator.register(make_registration(job_name=job, uid=UID)).attempt


def wait_for(text: str, process: Popen[str]) -> None:
    """Read what the process prints until a text is in it."""
    assert process.stdout is not None
    read, output = (
        b"",
        process.stdout.fileno(),
    )  # not by lines, for select does not see what a reader of lines holds back
    while text.encode() not in read:
        ready, _, _ = select.select([output], [], [], LIMIT_SECONDS)
        chunk = os.read(output, 65536) if ready else b""
        assert chunk, f"{text!r} was not to be seen in:\n{read.decode(errors='replace')}"
        read += chunk


def found(airflow: Airflow) -> dict[str, Any]:
    return dict(json.loads((airflow.work / "found.json").read_text()))


@contextmanager
def running(airflow: Airflow, dag_id: str, date: str) -> Iterator[Popen[str]]:
    process = airflow.start_dag_test(dag_id, date)
    try:
        yield process
    finally:
        process.kill()  # a trigger that finds nothing would wait for ever


@pytest.mark.parametrize(
    ("day", "dag_id", "by_default", "sign"),
    [
        ("01", "poking", "True", LOOKING),
        ("02", "deferred", "False", WAITING),
        ("03", "default", "False", LOOKING),
        ("04", "default", "True", WAITING),
    ],
    ids=["poking", "deferred", "poking by default", "deferred by default"],
)
def test_sensor_waits_in_dag_test_and_returns_what_it_found(
    airflow: Airflow, day: str, dag_id: str, by_default: str, sign: str
) -> None:
    date = f"2026-02-{day}T00:00:00+00:00"
    job = f"test/{dag_id}/{date}"
    airflow.environment["AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE"] = by_default
    with running(airflow, dag_id, date) as process:
        wait_for(sign, process)
        with coordinator_of(airflow) as coordinator:
            attempt = begin(coordinator, job)
            complete_checkpoint(coordinator, attempt)
            completed = complete_checkpoint(coordinator, attempt).checkpoint
        assert airflow.finish(process) == 0, airflow.output
    assert completed is not None
    assert completed.completed_at is not None
    assert found(airflow) == {
        "job": job,
        "uid": UID,
        "checkpoint_id": 2,
        "pointer": f"memory://base/{job_id_of(job)}/chk-2",
        "completed_at": completed.completed_at.isoformat(),
    }


@pytest.mark.parametrize("deferrable", ["False", "True"], ids=["poking", "deferrable"])
def test_a_checkpoint_that_is_there_is_returned_by_tasks_test(airflow: Airflow, deferrable: str) -> None:
    job = "test/default/2026-02-05T00:00:00+00:00"
    with coordinator_of(airflow) as coordinator:
        attempt = begin(coordinator, job)
        for _ in range(2):
            complete_checkpoint(coordinator, attempt)
    airflow.environment["AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE"] = deferrable
    airflow.run("dags", "reserialize")
    airflow.run("tasks", "test", "default", "wait", "2026-02-05")
    assert "Marking task as SUCCESS" in airflow.output or "state=success" in airflow.output, airflow.output
