"""A stage whose application travels with the package: as the first argument, and as an argument with a name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from airflow.providers.amazon.aws.hooks.glue import GlueJobHook
from airflow.providers.apache.livy.hooks.livy import LivyHook

from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.payloads.additions import Additions
from airflow_provider_statecheck.payloads.glue import run_with
from airflow_provider_statecheck.payloads.livy import batch_with
from tests.airflow.dags import payments
from tests.services.amazon import REGION, amazon
from tests.services.drivers import DriverState
from tests.services.livy import livy
from tests.services.task import Task

PLACE = """
from pathlib import Path
import payments

stage = payments.stage_in(Path({folder!r}), "raise")
"""

pytestmark = pytest.mark.soak


def files_of(task: Task) -> list[str]:
    place = task.work / "place.py"
    place.write_text(PLACE.format(folder=str(task.work)))
    return [Path(str(payments.__file__)).as_uri(), place.as_uri()]


@pytest.fixture
def with_livy(connections, drivers) -> Callable[[Task, Additions], Any]:
    connections.name("livy_default", conn_type="livy", host=connections.serve(livy(drivers)))
    return lambda task, additions: LivyHook().post_batch(
        **batch_with({"file": "", "py_files": files_of(task)}, additions)
    )


@pytest.fixture
def with_glue(connections, drivers) -> Any:
    with amazon(drivers) as url:
        extra = {"endpoint_url": url, "region_name": REGION}
        connections.name("aws_default", conn_type="aws", login="key", password="secret", extra=extra)
        hook = GlueJobHook(job_name="totals")
        command = {"Name": "glueetl", "ScriptLocation": "s3://nowhere/totals.py"}
        hook.conn.create_job(Name="totals", Role="jobs", Command=command, ExecutionProperty={"MaxConcurrentRuns": 2})

        def submit(task: Task, additions: Additions) -> Any:
            arguments = run_with({"--extra-py-files": ",".join(files_of(task))}, additions)
            return hook.conn.start_job_run(JobName="totals", Arguments=arguments)

        yield submit


@pytest.mark.parametrize("service", ["with_livy", "with_glue"])
def test_stage_that_fails_goes_on_with_the_increment_that_failed(
    task: Task, drivers, request: pytest.FixtureRequest, service: str
) -> None:
    submit = request.getfixturevalue(service)
    ends = {1: (AttemptStatus.FAILED, DriverState.FAILED), 2: (AttemptStatus.FINISHED, DriverState.SUCCEEDED)}
    for number, (end, state) in ends.items():
        with task.next_try(end) as additions:
            submit(task, task.of_stage(additions, "place:stage"))
            task.wait_until(partial(drivers.has_ended, number))
            assert drivers.state(number) is state, drivers.log(number)[-5000:]
    assert task.computed == ["day 1", "day 2", "day 3", "day 3", "day 4"]
    files = sorted((task.work / "output").rglob("part-*.parquet"))
    rows = sorted(tuple(row.values()) for file in files for row in pq.read_table(file).to_pylist())
    assert rows == payments.expected()
