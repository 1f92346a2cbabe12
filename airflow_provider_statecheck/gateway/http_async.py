"""Reading a job over HTTP without blocking an event loop."""

from __future__ import annotations

import asyncio

import httpx

from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.job_view import JobView
from airflow_provider_statecheck.gateway.http_client import content_of, failures_of, headers_for, url_of
from airflow_provider_statecheck.gateway.reply import read_reply


class AsyncJobReader:
    """
    Reads with a token that somebody else obtained and that cannot be renewed.

    :param base_url: Root of Airflow's api-server.
    :param token: A token for reading one job.
    :param client: The client to use.
    """

    def __init__(self, base_url: str, token: str, client: httpx.AsyncClient) -> None:
        self._base_url = base_url.rstrip("/")
        self._token = token
        self._client = client

    async def describe(self, job_id: JobId) -> JobView:
        """
        Return a job as it stands.

        :raises StateCheckError: what the coordinator raised, or what it means that it did not answer.
        """
        url = url_of(self._base_url, f"jobs/{job_id}")
        with failures_of(self._base_url, url):
            response = await self._client.get(url, headers=headers_for(self._token))
        # A job may have many attempts; decoding them here would hold up the event loop.
        return await asyncio.to_thread(_view_of, response, url)


def _view_of(response: httpx.Response, url: str) -> JobView:
    return read_reply(JobView, content_of(response, url))
