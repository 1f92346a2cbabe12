"""The newest checkpoints of a job as a remote reader asks for them, with a token that its caller gave it."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.records import RowsVersion
from airflow_provider_statecheck.checkpoint.store import LatestCheckpoints
from airflow_provider_statecheck.exceptions import AccessDeniedError
from airflow_provider_statecheck.gateway.http import AsyncJobReader
from tests.unit.api.server import ApiServer, accepted


def read(
    api: ApiServer, token: str, job_id: JobId, known_version: RowsVersion | None = None
) -> LatestCheckpoints | None:
    """Read the newest checkpoints as an asynchronous server does."""

    async def asked() -> LatestCheckpoints | None:
        transport = httpx.ASGITransport(api.client.app)
        async with httpx.AsyncClient(transport=transport) as client:
            return await AsyncJobReader("http://api", token, client).latest_checkpoints(job_id, known_version)

    return asyncio.run(asked())


def test_an_asynchronous_reader_gets_them_once_for_each_version(api: ApiServer) -> None:
    attempt = api.attempt()
    api.complete(attempt)
    job_id = JobId(attempt.job_id)
    token = api.reading_token(job_id)
    latest = read(api, token, job_id)
    assert latest == api.services.coordinator.latest_checkpoints(job_id)
    assert latest is not None
    assert read(api, token, job_id, latest.job.rows_version) is None
    api.complete(attempt)
    newer = read(api, token, job_id, latest.job.rows_version)
    assert newer is not None
    assert [c.checkpoint_id for c in newer.checkpoints] == [2]


def test_a_token_of_another_job_is_refused_whatever_the_version(api: ApiServer) -> None:
    other = api.attempt("hourly")
    api.attempt()
    job_id = JobId(other.job_id)
    latest = read(api, other.token, job_id)
    assert latest is not None
    with pytest.raises(AccessDeniedError, match="Expected a token of job"):
        read(api, api.reading_token("0" * 32), job_id, latest.job.rows_version)


def test_version_without_its_time_does_not_tell_that_the_job_is_unchanged(api: ApiServer) -> None:
    attempt = api.attempt()
    path = f"/v1/jobs/{attempt.job_id}/latest"
    latest = accepted(api.call("GET", path, attempt.token))
    assert accepted(api.call("GET", f"{path}?known_version={latest['job']['version']}", attempt.token)) == latest
