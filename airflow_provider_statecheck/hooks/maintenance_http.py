"""Maintenance over HTTP, for a task of a maintenance Dag."""

from __future__ import annotations

from typing import Any, TypeVar

from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.job_view import JobView
from airflow_provider_statecheck.checkpoint.maintenance import (
    CloseAbandoned,
    DropTokens,
    ForgetRows,
    Removal,
    RetireJob,
)
from airflow_provider_statecheck.checkpoint.messages import AttemptRef, ConfirmDiscards
from airflow_provider_statecheck.checkpoint.pruning import ForgettableRows
from airflow_provider_statecheck.checkpoint.records import JobRecord
from airflow_provider_statecheck.exceptions import TokenExpiredError
from airflow_provider_statecheck.gateway.credentials import Credentials
from airflow_provider_statecheck.gateway.http_client import HttpClient
from airflow_provider_statecheck.gateway.reply import read_reply
from airflow_provider_statecheck.gateway.wire import encode
from airflow_provider_statecheck.hooks.transport import patiently

Reply = TypeVar("Reply")


class HttpMaintenance:
    """
    A ``MaintenanceGateway`` over HTTP; every call is repeated while the api-server is down for a moment.

    :param client: The server.
    :param credentials: Where tokens come from.
    """

    def __init__(self, client: HttpClient, credentials: Credentials) -> None:
        self._client = client
        self._credentials = credentials
        self._token: str | None = None

    def jobs(self) -> tuple[JobRecord, ...]:
        """Return all jobs, the most recently active first."""
        return read_reply(tuple[JobRecord, ...], self._ask("GET", "jobs"))

    def describe(self, job_id: JobId) -> JobView:
        """Return all that is kept of a job."""
        return read_reply(JobView, self._ask("GET", f"jobs/{job_id}"))

    def confirm_discards(self, request: ConfirmDiscards) -> None:
        """Record that the bytes of ended checkpoints are gone."""
        self._ask("POST", "maintenance/confirm-discards", request)

    def close_abandoned(self, job_id: JobId) -> tuple[AttemptRef, ...]:
        """End the attempts whose drivers died without a word and return which they were."""
        request = CloseAbandoned(job_id=job_id)
        return read_reply(tuple[AttemptRef, ...], self._ask("POST", "maintenance/close-abandoned", request))

    def forget(self, request: ForgetRows) -> ForgettableRows:
        """Remove the rows of what ended so long ago and return which they were."""
        return read_reply(ForgettableRows, self._ask("POST", "maintenance/forget", request))

    def refusal(self, request: RetireJob) -> Removal:
        """Say whether :meth:`retire` would be done, and change nothing."""
        return read_reply(Removal, self._ask("POST", "maintenance/refusal", request))

    def retire(self, request: RetireJob) -> Removal:
        """End every checkpoint of a job that has no open attempt."""
        return read_reply(Removal, self._ask("POST", "maintenance/retire", request))

    def remove(self, request: RetireJob) -> Removal:
        """Remove the rows of a retired job whose bytes are gone."""
        return read_reply(Removal, self._ask("POST", "maintenance/remove", request))

    def drop_tokens(self, request: DropTokens) -> int:
        """Remove the tokens that have been of no use for so long and return how many there were."""
        return read_reply(int, self._ask("POST", "maintenance/drop-tokens", request))

    def _ask(self, method: str, path: str, request: Any = None) -> Any:
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
