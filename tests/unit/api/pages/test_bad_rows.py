"""The pages of a job with a row that cannot be read, and of the jobs beside it."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.metadata.tables import METADATA
from tests.bad_rows import NO_TEXT, corrupt
from tests.unit.api.pages.site import Site

BAD_VALUES = {
    "attempt.owner": "{",
    "attempt.status": "unknown",
    "checkpoint.status": "unknown",
    "checkpoint.completed_at": "yesterday",
    "operator.epoch": -1,
    "job.next_checkpoint_id": NO_TEXT,
    "statistics.content": "[",
}
OF_THE_JOB = (
    "/jobs/{job}",
    "/jobs/{job}/operators/{operator}",
    "/jobs/{job}/checkpoints",
    "/jobs/{job}/checkpoints/1",
    "/jobs/{job}/actions/rewind?operator_id={operator}&run_key=2026-01-01",
)
AROUND_IT = ("/jobs", "/dags/nightly", "/dags/nightly/runs/run-1", "/dags/nightly/runs/run-1/tasks/features")


def _made(site: Site, name: str) -> tuple[str, OperatorId]:
    job = site.job(name).begin()
    job.checkpoint()
    job.end(AttemptStatus.FAILED, "no memory")
    return job.attempt.job_id, job.attempt.operator_id


@pytest.mark.parametrize("place", BAD_VALUES)
def test_pages_tell_which_value_of_a_job_cannot_be_read_and_show_the_other_jobs(site: Site, place: str) -> None:
    good, _ = _made(site, "orders")
    bad, operator = _made(site, "sales")
    table, column = place.split(".")
    corrupt(site.store.engine, METADATA.tables[f"statecheck_{table}"].c[column], BAD_VALUES[place], bad)
    problem = f"column {column} of table statecheck_{table}"

    for path in OF_THE_JOB:
        assert problem in site.read(path.format(job=bad, operator=operator)).text, path
    for path in AROUND_IT:
        assert "orders" in site.read(path).text, path
    assert "no memory" in site.read(f"/jobs/{good}").text
    for path in AROUND_IT[2:]:
        assert problem in site.read(path).text, path
