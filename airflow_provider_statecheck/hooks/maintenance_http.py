"""Maintenance over HTTP, for a task of a maintenance Dag."""

from __future__ import annotations

from typing import Any, TypeVar

from airflow_provider_statecheck.checkpoint.forgetting import ForgettableRows
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.job_view import CheckpointPage, JobView
from airflow_provider_statecheck.checkpoint.maintenance import (
    CloseAbandoned,
    DropTokens,
    ForgetRows,
    Removal,
    RetireJob,
    SettleRun,
)
from airflow_provider_statecheck.checkpoint.messages import AttemptRef, ConfirmDiscards
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, JobRecord
from airflow_provider_statecheck.exceptions import TokenExpiredError
from airflow_provider_statecheck.gateway.credentials import Credentials
from airflow_provider_statecheck.gateway.http_client import HttpClient
from airflow_provider_statecheck.gateway.paths import page_path
from airflow_provider_statecheck.gateway.reply import read_reply
from airflow_provider_statecheck.gateway.wire import encode
from airflow_provider_statecheck.hooks.transport import patiently

Reply = TypeVar("Reply")


class MaintenanceCalls:
    """
    Calls in the name of a maintenance task; every one is repeated while the api-server is down for a moment.

    :param client: The server.
    :param credentials: Where tokens come from.
    """

    def __init__(self, client: HttpClient, credentials: Credentials) -> None:
        self._client = client
        self._credentials = credentials
        self._token: str | None = None

    def ask(self, method: str, path: str, request: Any = None) -> Any:
        """
        Make a call and return the reply's JSON.

        :param method: ``GET`` or ``POST``.
        :param path: Below the API's root.
        :param request: The message to post.
        """
        return patiently(lambda: self._send(method, path, request))

    def _send(self, method: str, path: str, request: Any) -> Any:
        try:
            return self._send_once(method, path, request)
        except TokenExpiredError:
            # A task's token lives for minutes, a sweep of large jobs for longer.
            self._token = None
            return self._send_once(method, path, request)

    def _send_once(self, method: str, path: str, request: Any) -> Any:
        if self._token is None:
            self._token = self._credentials.obtain()
        if method == "GET":
            return self._client.get(path, self._token)
        return self._client.post(path, encode(request), self._token)


class HttpMaintenance:
    """
    A ``MaintenanceGateway`` over HTTP.

    :param calls: The server.
    """

    def __init__(self, calls: MaintenanceCalls) -> None:
        self._calls = calls

    def jobs(self) -> tuple[JobRecord, ...]:
        """Return all jobs, the most recently active first."""
        return read_reply(tuple[JobRecord, ...], self._calls.ask("GET", "jobs"))

    def describe(self, job_id: JobId) -> JobView:
        """Return a job as it stands."""
        return read_reply(JobView, self._calls.ask("GET", f"jobs/{job_id}"))

    def checkpoint(self, job_id: JobId, checkpoint_id: int) -> CheckpointRecord | None:
        """Return a checkpoint of a job, ``None`` if it has no row."""
        data = self._calls.ask("GET", f"jobs/{job_id}/checkpoints/{checkpoint_id}")
        return None if data is None else read_reply(CheckpointRecord, data)

    def checkpoints(self, job_id: JobId, page: CheckpointPage) -> tuple[CheckpointRecord, ...]:
        """Return a page of the checkpoints of a job, newest first."""
        return read_reply(tuple[CheckpointRecord, ...], self._calls.ask("GET", page_path(job_id, page)))

    def confirm_discards(self, request: ConfirmDiscards) -> None:
        """Record that the bytes of ended checkpoints are gone."""
        self._calls.ask("POST", "maintenance/confirm-discards", request)

    def close_abandoned(self, job_id: JobId) -> tuple[AttemptRef, ...]:
        """End the attempts whose drivers died without a word and return which they were."""
        request = CloseAbandoned(job_id=job_id)
        return read_reply(tuple[AttemptRef, ...], self._calls.ask("POST", "maintenance/close-abandoned", request))

    def settle_run(self, job_id: JobId) -> tuple[int, ...]:
        """Take away from restore what does not stay after the end of its run and return which checkpoints it was."""
        return read_reply(tuple[int, ...], self._calls.ask("POST", "maintenance/settle-run", SettleRun(job_id=job_id)))

    def forget(self, request: ForgetRows) -> ForgettableRows:
        """Remove the rows of what ended so long ago and return which they were."""
        return read_reply(ForgettableRows, self._calls.ask("POST", "maintenance/forget", request))

    def refusal(self, request: RetireJob) -> Removal:
        """Say whether :meth:`retire` would be done, and change nothing."""
        return read_reply(Removal, self._calls.ask("POST", "maintenance/refusal", request))

    def retire(self, request: RetireJob) -> Removal:
        """End every checkpoint of a job that has no open attempt."""
        return read_reply(Removal, self._calls.ask("POST", "maintenance/retire", request))

    def remove(self, request: RetireJob) -> Removal:
        """Remove the rows of a retired job whose bytes are gone."""
        return read_reply(Removal, self._calls.ask("POST", "maintenance/remove", request))

    def drop_tokens(self, request: DropTokens) -> int:
        """Remove the tokens that have been of no use for so long and return how many there were."""
        return read_reply(int, self._calls.ask("POST", "maintenance/drop-tokens", request))
