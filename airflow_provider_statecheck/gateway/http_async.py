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
    Reads with a token that somebody else obtained, and lets it live on.

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
        response = await self._send("GET", url)
        # A job may have many attempts; decoding them here would hold up the event loop.
        return await asyncio.to_thread(_view_of, response, url)

    async def renew(self) -> None:
        """
        Let the token live for another quarter of an hour.

        :raises TokenExpiredError: if it is too late.
        :raises AccessDeniedError: if the task that it was given to does not wait any more.
        :raises StateCheckError: as for :meth:`describe`.
        """
        url = url_of(self._base_url, "token/renew")
        content_of(await self._send("POST", url), url)

    async def _send(self, method: str, url: str) -> httpx.Response:
        with failures_of(self._base_url, url):
            return await self._client.request(method, url, headers=headers_for(self._token))


def _view_of(response: httpx.Response, url: str) -> JobView:
    return read_reply(JobView, content_of(response, url))
