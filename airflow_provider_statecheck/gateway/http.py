"""Gateways over HTTP: one for tasks and drivers, and an asynchronous reader for triggers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from airflow_provider_statecheck.checkpoint.codec import encode, read_reply
from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.messages import (
    AcknowledgeCheckpoint,
    AcknowledgeReply,
    AdoptAttempt,
    AttemptGrant,
    AttemptRef,
    ConfirmCommits,
    ConfirmDiscards,
    ConfirmRestore,
    DeclineCheckpoint,
    FinishAttempt,
    OpenEffects,
    PendingCheckpoint,
    RegisterAttempt,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, CheckpointRecord, JobRecord, RowsVersion
from airflow_provider_statecheck.checkpoint.store import CheckpointPage, JobView, LatestCheckpoints
from airflow_provider_statecheck.exceptions import AccessDeniedError, StaleAttemptError, TokenExpiredError
from airflow_provider_statecheck.gateway.http_client import (
    Credentials,
    HttpClient,
    content_of,
    headers_for,
    mapping_failures,
    url_of,
)
from airflow_provider_statecheck.gateway.protocol import job_path, latest_path, page_path


@dataclass(frozen=True, slots=True)
class _Issued:
    token: str = field(repr=False)


class HttpGateway:
    """
    A ``CheckpointCoordinatorGateway`` over HTTP.

    Each attempt has its own token. If the token of an attempt that was registered or adopted here expires, the gateway
    obtains a new one and adopts the attempt with it.

    :param client: Client of the server.
    :param credentials: Source of new tokens.
    :param tokens: Tokens of attempts that were registered by another process.
    """

    def __init__(
        self, client: HttpClient, credentials: Credentials, tokens: Mapping[AttemptRef, str] | None = None
    ) -> None:
        self._client = client
        self._credentials = credentials
        self._tokens = dict(tokens or {})
        self._owners: dict[AttemptRef, AttemptOwner] = {}
        self._reading: str | None = None

    def token_of(self, attempt: AttemptRef) -> str:
        """
        Return the token of an attempt; pass it to the driver of the attempt only.

        :raises StaleAttemptError: if the attempt was neither registered nor adopted here.
        """
        if attempt not in self._tokens:
            raise StaleAttemptError(
                f"Attempt {attempt.epoch} of job {attempt.job_id} is not registered by this client; register it first.",
                epoch=attempt.epoch,
            )
        return self._tokens[attempt]

    def register(self, request: RegisterAttempt) -> AttemptGrant:
        """Register an attempt, fence all earlier attempts of the operator, and return the candidates for a restore."""
        token = self._credentials.obtain()
        grant = read_reply(AttemptGrant, self._client.post("attempts/register", encode(request), token))
        self._tokens[grant.attempt] = token
        self._owners[grant.attempt] = request.owner
        return grant

    def adopt(self, request: AdoptAttempt) -> None:
        """Take over an attempt that still runs, in a later try of the same task."""
        token = self._credentials.obtain()
        self._client.post("attempts/adopt", encode(request), token)
        self._tokens[request.attempt] = token
        self._owners[request.attempt] = request.owner

    def confirm_restore(self, request: ConfirmRestore) -> None:
        """Record the restored checkpoint and the candidates that could not be restored."""
        self._call("confirm-restore", request.attempt, request)

    def trigger(self, request: TriggerCheckpoint) -> PendingCheckpoint:
        """Allocate the id of a new checkpoint."""
        return read_reply(PendingCheckpoint, self._call("trigger", request.attempt, request))

    def acknowledge(self, request: AcknowledgeCheckpoint) -> AcknowledgeReply:
        """Complete a checkpoint whose files are all on storage."""
        return read_reply(AcknowledgeReply, self._call("acknowledge", request.attempt, request))

    def decline(self, request: DeclineCheckpoint) -> OpenEffects:
        """Abort a pending checkpoint."""
        return read_reply(OpenEffects, self._call("decline", request.attempt, request))

    def confirm_discards(self, request: ConfirmDiscards) -> None:
        """
        Record that the files of ended checkpoints were deleted.

        :raises AccessDeniedError: if the request has no attempt; maintenance uses other routes.
        """
        if request.attempt is None:
            raise AccessDeniedError(
                "Expected the attempt that deleted the files, found none; maintenance needs direct access to Airflow's "
                "database, for example as a command."
            )
        self._call("confirm-discards", request.attempt, request)

    def confirm_commits(self, request: ConfirmCommits) -> OpenEffects:
        """Record that a sink committed the output of checkpoints and of all earlier ones."""
        return read_reply(OpenEffects, self._call("confirm-commits", request.attempt, request))

    def finish(self, request: FinishAttempt) -> OpenEffects:
        """Close the attempt and release its pins."""
        return read_reply(OpenEffects, self._call("finish", request.attempt, request))

    def jobs(self) -> tuple[JobRecord, ...]:
        """Return all jobs, most recently active first."""
        return read_reply(tuple[JobRecord, ...], self._read("jobs"))

    def describe(self, job_id: JobId) -> JobView:
        """Return a job with its newest checkpoints."""
        return read_reply(JobView, self._read(job_path(job_id)))

    def checkpoint(self, job_id: JobId, checkpoint_id: int) -> CheckpointRecord | None:
        """Return a checkpoint of a job, or ``None`` if it has no row."""
        data = self._read(f"{job_path(job_id)}/checkpoints/{checkpoint_id}")
        return None if data is None else read_reply(CheckpointRecord, data)

    def checkpoints(self, job_id: JobId, page: CheckpointPage) -> tuple[CheckpointRecord, ...]:
        """Return a page of the checkpoints of a job, newest first."""
        return read_reply(tuple[CheckpointRecord, ...], self._read(page_path(job_id, page)))

    def latest(self, job_id: JobId, operator_id: OperatorId) -> CheckpointRecord | None:
        """Return the newest completed checkpoint of an operator, or ``None`` if there is none."""
        data = self._read(f"{job_path(job_id)}/operators/{operator_id}/latest")
        return None if data is None else read_reply(CheckpointRecord, data)

    def latest_checkpoints(self, job_id: JobId, known_version: RowsVersion | None = None) -> LatestCheckpoints | None:
        """Return the newest readable checkpoint of each operator, or ``None`` if the version is the known one."""
        return _latest_of(self._read(latest_path(job_id, known_version)))

    def reading_token(self, job_id: JobId) -> str:
        """Return a token that can only read one job, for code that cannot obtain tokens, such as a trigger."""
        return read_reply(_Issued, self._client.post("token/read", {"job_id": job_id}, self._task_token())).token

    def _call(self, verb: str, attempt: AttemptRef, request: Any) -> Any:
        try:
            return self._client.post(f"attempts/{verb}", encode(request), self.token_of(attempt))
        except TokenExpiredError:
            if attempt not in self._owners:
                raise
        self.adopt(AdoptAttempt(attempt=attempt, owner=self._owners[attempt]))
        return self._client.post(f"attempts/{verb}", encode(request), self._tokens[attempt])

    def _read(self, path: str) -> Any:
        try:
            return self._client.get(path, self._task_token())
        except TokenExpiredError:
            self._reading = None
            return self._client.get(path, self._task_token())

    def _task_token(self) -> str:
        if self._reading is None:
            self._reading = self._credentials.obtain()
        return self._reading


class AsyncJobReader:
    """
    Reader of one job with a read token, which it can renew.

    :param base_url: Root URL of Airflow's api-server.
    :param token: Read token of the job.
    :param client: Client for the requests.
    """

    def __init__(self, base_url: str, token: str, client: httpx.AsyncClient) -> None:
        self._base_url = base_url.rstrip("/")
        self._token = token
        self._client = client

    async def describe(self, job_id: JobId) -> JobView:
        """
        Return a job with its newest checkpoints.

        :raises StateCheckError: the error of the coordinator, or of the connection.
        """
        url = url_of(self._base_url, job_path(job_id))
        response = await self._send("GET", url)
        # Decoding a job with many attempts would block the event loop.
        return await asyncio.to_thread(_view_of, response, url)

    async def latest_checkpoints(
        self, job_id: JobId, known_version: RowsVersion | None = None
    ) -> LatestCheckpoints | None:
        """
        Return the newest readable checkpoint of each operator, or ``None`` if the version is the known one.

        :raises StateCheckError: as for :meth:`describe`.
        """
        url = url_of(self._base_url, latest_path(job_id, known_version))
        data = content_of(await self._send("GET", url), url)
        return None if data is None else await asyncio.to_thread(_latest_of, data)

    async def renew(self) -> None:
        """
        Extend the token by 15 minutes.

        :raises TokenExpiredError: if the token has expired.
        :raises AccessDeniedError: if its task neither runs nor is deferred.
        :raises StateCheckError: as for :meth:`describe`.
        """
        url = url_of(self._base_url, "token/renew")
        content_of(await self._send("POST", url), url)

    async def _send(self, method: str, url: str) -> httpx.Response:
        with mapping_failures(self._base_url, url):
            return await self._client.request(method, url, headers=headers_for(self._token))


def _view_of(response: httpx.Response, url: str) -> JobView:
    return read_reply(JobView, content_of(response, url))


def _latest_of(data: Any) -> LatestCheckpoints | None:
    return None if data is None else read_reply(LatestCheckpoints, data)
