"""Gateways over HTTP: one for tasks and drivers, and an asynchronous reader for triggers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx

from airflow_provider_statecheck.checkpoint.codec import read_reply
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.messages import AdoptAttempt, AttemptGrant, AttemptRef, RegisterAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, RowsVersion
from airflow_provider_statecheck.checkpoint.store import JobView, LatestCheckpoints
from airflow_provider_statecheck.exceptions import AccessDeniedError, StaleAttemptError, TokenExpiredError
from airflow_provider_statecheck.gateway.http_client import (
    Credentials,
    HttpClient,
    content_of,
    headers_for,
    mapping_failures,
    url_of,
)
from airflow_provider_statecheck.gateway.verbs import COORDINATOR, Verb


@dataclass(frozen=True, slots=True)
class _Issued:
    token: str = field(repr=False)


class HttpCalls:
    """
    An interface of the coordinator over HTTP, with the token of a task: each method of the interface is a request.

    The token is replaced when it has expired, as in a garbage collection that takes longer than its validity.

    :param verbs: Calls of the interface.
    :param client: Client of the server.
    :param credentials: Source of new tokens.
    """

    def __init__(self, verbs: Mapping[str, Verb], client: HttpClient, credentials: Credentials) -> None:
        self._verbs = verbs
        self._client = client
        self._credentials = credentials
        self._token: str | None = None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or name not in self._verbs:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return partial(self._call, self._verbs[name])

    def _call(self, verb: Verb, *arguments: Any, **named: Any) -> Any:
        return self._as_task(lambda token: verb.send(self._client, token, *arguments, **named))

    def _as_task(self, send: Callable[[str], Any]) -> Any:
        try:
            return send(self._task_token())
        except TokenExpiredError:
            self._token = None
            return send(self._task_token())

    def _task_token(self) -> str:
        if self._token is None:
            self._token = self._credentials.obtain()
        return self._token


class HttpGateway(HttpCalls):
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
        super().__init__(COORDINATOR, client, credentials)
        self._tokens = dict(tokens or {})
        self._owners: dict[AttemptRef, AttemptOwner] = {}

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
        grant: AttemptGrant = self._verbs["register"].send(self._client, token, request)
        self._know(grant.attempt, token, request.owner)
        return grant

    def adopt(self, request: AdoptAttempt) -> None:
        """Take over an attempt that still runs, in a later try of the same task."""
        token = self._credentials.obtain()
        self._verbs["adopt"].send(self._client, token, request)
        self._know(request.attempt, token, request.owner)

    def reading_token(self, job_id: JobId) -> str:
        """Return a token that can only read one job, for code that cannot obtain tokens, such as a trigger."""
        issued = self._as_task(lambda token: self._client.post("token/read", {"job_id": job_id}, token))
        return read_reply(_Issued, issued).token

    def _know(self, attempt: AttemptRef, token: str, owner: AttemptOwner) -> None:
        self._tokens[attempt] = token
        self._owners[attempt] = owner

    def _call(self, verb: Verb, *arguments: Any, **named: Any) -> Any:
        if verb.is_read:
            return super()._call(verb, *arguments, **named)
        return self._call_of_attempt(verb, *arguments)

    def _call_of_attempt(self, verb: Verb, request: Any) -> Any:
        attempt = _attempt_of(request)
        try:
            return verb.send(self._client, self.token_of(attempt), request)
        except TokenExpiredError:
            if attempt not in self._owners:
                raise
        self.adopt(AdoptAttempt(attempt=attempt, owner=self._owners[attempt]))
        return verb.send(self._client, self.token_of(attempt), request)


def _attempt_of(request: Any) -> AttemptRef:
    attempt: AttemptRef | None = request.attempt
    if attempt is None:
        raise AccessDeniedError(
            "Expected the attempt that deleted the files, found none; maintenance needs direct access to Airflow's "
            "database, for example as a command."
        )
    return attempt


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
        view: JobView = await self._read(COORDINATOR["describe"], job_id=job_id)
        return view

    async def latest_checkpoints(
        self, job_id: JobId, known_version: RowsVersion | None = None
    ) -> LatestCheckpoints | None:
        """
        Return the newest readable checkpoint of each operator, or ``None`` if the version is the known one.

        :raises StateCheckError: as for :meth:`describe`.
        """
        found: LatestCheckpoints | None = await self._read(
            COORDINATOR["latest_checkpoints"], job_id=job_id, known_version=known_version
        )
        return found

    async def renew(self) -> None:
        """
        Extend the token by 15 minutes.

        :raises TokenExpiredError: if the token has expired.
        :raises AccessDeniedError: if its task neither runs nor is deferred.
        :raises StateCheckError: as for :meth:`describe`.
        """
        url = url_of(self._base_url, "token/renew")
        content_of(await self._send("POST", url), url)

    async def _read(self, verb: Verb, **arguments: Any) -> Any:
        url = url_of(self._base_url, verb.address(**arguments))
        data = content_of(await self._send("GET", url), url)
        # Decoding a job with many attempts would block the event loop.
        return verb.decoded(None) if data is None else await asyncio.to_thread(verb.decoded, data)

    async def _send(self, method: str, url: str) -> httpx.Response:
        with mapping_failures(self._base_url, url):
            return await self._client.request(method, url, headers=headers_for(self._token))
