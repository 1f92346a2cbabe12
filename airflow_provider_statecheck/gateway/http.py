"""The coordinator over HTTP, for tasks, drivers and triggers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

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
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, CheckpointRecord, JobRecord
from airflow_provider_statecheck.checkpoint.store import CheckpointPage, JobView
from airflow_provider_statecheck.exceptions import AccessDeniedError, StaleAttemptError, TokenExpiredError
from airflow_provider_statecheck.gateway.http_client import (
    Credentials,
    HttpClient,
    content_of,
    failures_of,
    headers_for,
    url_of,
)
from airflow_provider_statecheck.gateway.protocol import page_path
from airflow_provider_statecheck.gateway.wire import encode, read_reply


@dataclass(frozen=True, slots=True)
class _Issued:
    token: str = field(repr=False)


class HttpGateway:
    """
    A ``CheckpointCoordinatorGateway`` over HTTP.

    Each attempt has a token of its own. One that expired while its attempt runs is replaced, where the credentials give
    a new one.

    :param client: The server.
    :param credentials: Where tokens come from.
    :param tokens: Tokens of attempts that were registered elsewhere.
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
        Return the token of an attempt, to be handed to its driver and to nobody else.

        :raises StaleAttemptError: if the attempt was neither registered nor adopted here.
        """
        if attempt not in self._tokens:
            raise StaleAttemptError(
                f"Attempt {attempt.epoch} of job {attempt.job_id} is not registered by this client; register it first.",
                epoch=attempt.epoch,
            )
        return self._tokens[attempt]

    def register(self, request: RegisterAttempt) -> AttemptGrant:
        """Fence all earlier attempts of the operator and say what to restore."""
        token = self._credentials.obtain()
        grant = read_reply(AttemptGrant, self._client.post("attempts/register", encode(request), token))
        self._tokens[grant.attempt] = token
        self._owners[grant.attempt] = request.owner
        return grant

    def adopt(self, request: AdoptAttempt) -> None:
        """Let a later try of the same task speak for an attempt that still runs."""
        token = self._credentials.obtain()
        self._client.post("attempts/adopt", encode(request), token)
        self._tokens[request.attempt] = token
        self._owners[request.attempt] = request.owner

    def confirm_restore(self, request: ConfirmRestore) -> None:
        """Record what was restored and which candidates could not be."""
        self._speak("confirm-restore", request.attempt, request)

    def trigger(self, request: TriggerCheckpoint) -> PendingCheckpoint:
        """Draw the id of a new checkpoint."""
        return read_reply(PendingCheckpoint, self._speak("trigger", request.attempt, request))

    def acknowledge(self, request: AcknowledgeCheckpoint) -> AcknowledgeReply:
        """Complete a checkpoint whose bytes are all on storage."""
        return read_reply(AcknowledgeReply, self._speak("acknowledge", request.attempt, request))

    def decline(self, request: DeclineCheckpoint) -> OpenEffects:
        """Abort a checkpoint that will not be completed."""
        return read_reply(OpenEffects, self._speak("decline", request.attempt, request))

    def confirm_discards(self, request: ConfirmDiscards) -> None:
        """
        Record that bytes are gone.

        :raises AccessDeniedError: for maintenance, which acts for no attempt and works where the database is open.
        """
        if request.attempt is None:
            raise AccessDeniedError(
                "Expected an attempt to confirm its discards, found none; maintenance runs where Airflow's database is "
                "open, for instance as a command."
            )
        self._speak("confirm-discards", request.attempt, request)

    def confirm_commits(self, request: ConfirmCommits) -> OpenEffects:
        """Record that a sink committed what checkpoints hold, those before them too."""
        return read_reply(OpenEffects, self._speak("confirm-commits", request.attempt, request))

    def finish(self, request: FinishAttempt) -> OpenEffects:
        """Close the attempt; its pins end."""
        return read_reply(OpenEffects, self._speak("finish", request.attempt, request))

    def jobs(self) -> tuple[JobRecord, ...]:
        """Return all jobs, the most recently active first."""
        return read_reply(tuple[JobRecord, ...], self._read("jobs"))

    def describe(self, job_id: JobId) -> JobView:
        """Return a job as it stands."""
        return read_reply(JobView, self._read(f"jobs/{job_id}"))

    def checkpoint(self, job_id: JobId, checkpoint_id: int) -> CheckpointRecord | None:
        """Return a checkpoint of a job, ``None`` if it has no row."""
        data = self._read(f"jobs/{job_id}/checkpoints/{checkpoint_id}")
        return None if data is None else read_reply(CheckpointRecord, data)

    def checkpoints(self, job_id: JobId, page: CheckpointPage) -> tuple[CheckpointRecord, ...]:
        """Return a page of the checkpoints of a job, newest first."""
        return read_reply(tuple[CheckpointRecord, ...], self._read(page_path(job_id, page)))

    def latest(self, job_id: JobId, operator_id: OperatorId) -> CheckpointRecord | None:
        """Return the newest completed checkpoint of an operator."""
        data = self._read(f"jobs/{job_id}/operators/{operator_id}/latest")
        return None if data is None else read_reply(CheckpointRecord, data)

    def reading_token(self, job_id: JobId) -> str:
        """Return a token that can read one job and nothing else, for code that cannot obtain tokens, such as a trigger."""
        return read_reply(_Issued, self._client.post("token/read", {"job_id": job_id}, self._reader())).token

    def _speak(self, verb: str, attempt: AttemptRef, request: Any) -> Any:
        try:
            return self._client.post(f"attempts/{verb}", encode(request), self.token_of(attempt))
        except TokenExpiredError:
            if attempt not in self._owners:
                raise
        self.adopt(AdoptAttempt(attempt=attempt, owner=self._owners[attempt]))
        return self._client.post(f"attempts/{verb}", encode(request), self._tokens[attempt])

    def _read(self, path: str) -> Any:
        try:
            return self._client.get(path, self._reader())
        except TokenExpiredError:
            self._reading = None
            return self._client.get(path, self._reader())

    def _reader(self) -> str:
        if self._reading is None:
            self._reading = self._credentials.obtain()
        return self._reading


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
