"""Gateways over HTTP for tasks, drivers and triggers, and their HTTP client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, Self

from airflow_provider_statecheck.checkpoint.codec import encode, read_reply
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.messages import AttemptGrant, AttemptRef, RegisterAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, RowsVersion
from airflow_provider_statecheck.checkpoint.store import JobView, LatestCheckpoints
from airflow_provider_statecheck.exceptions import (
    AccessDeniedError,
    CheckpointNotFoundError,
    CommitStateUnknownError,
    CoordinatorError,
    CoordinatorUnavailableError,
    InvalidConfigurationError,
    StaleAttemptError,
    StateCheckError,
    TokenExpiredError,
)
from airflow_provider_statecheck.gateway.verbs import MOUNT_PATH, STAGE_CALLS, VERSION_PATH, Verb, decode_error
from airflow_provider_statecheck.lazy import httpx
from airflow_provider_statecheck.storage.uris import redact

_TIMEOUT_SECONDS = 30.0
_CONNECT_TIMEOUT_SECONDS = 5.0
_LONGEST_WAIT_SECONDS = 120.0
"""Time after which a thread obtains a token of its own, if another thread does not return with one."""


class HttpClient:
    """
    Client of one api-server.

    :param base_url: Root URL of Airflow's api-server, including the path of ``[api] base_url``.
    :param client: Client for the requests. The default trusts the certificates of the machine.
    :raises InvalidConfigurationError: as :func:`root_url`.
    """

    def __init__(self, base_url: str, client: httpx.Client | None = None) -> None:
        self.base_url = root_url(base_url)
        self._client = client or httpx.Client(timeout=httpx.Timeout(_TIMEOUT_SECONDS, connect=_CONNECT_TIMEOUT_SECONDS))

    def call(self, verb: Verb, token: str, *arguments: Any, **named: Any) -> Any:
        """
        Make a call of the API.

        :raises StateCheckError: as :meth:`post`.
        """
        if verb.is_read:
            given = verb.signature.bind(*arguments, **named).arguments
            return self._read(verb, verb.address(**given), token)
        return verb.decoded(self.post(verb.path, encode(verb.message_of(*arguments, **named)), token))

    def post(self, path: str, body: Any, token: str | None = None) -> Any:
        """
        Send a message and return the reply.

        :raises StateCheckError: if the coordinator refuses the call; this is its error.
        :raises CoordinatorUnavailableError: if the message did not reach the server.
        :raises CommitStateUnknownError: if the reply was lost.
        """
        return self._send("POST", path, token, body)

    def get(self, path: str, token: str | None = None) -> Any:
        """
        Return the reply to a query.

        :raises StateCheckError: as :meth:`post`.
        """
        return self._send("GET", path, token, None)

    def log_in(self, login: str, password: str) -> str:
        """
        Return the token of an Airflow user.

        :raises AccessDeniedError: if Airflow rejects the login.
        :raises CoordinatorUnavailableError: if Airflow does not respond.
        """
        url = f"{self.base_url}/auth/token"
        response = self._request("POST", url, {"username": login, "password": password}, {})
        data = _json(response)
        if _is_transient(response):
            raise CoordinatorUnavailableError(
                f"Expected Airflow at {self.base_url} to log in the user of the connection, found status "
                f"{response.status_code}; nothing was changed, try again."
            )
        if not response.is_success or not isinstance(data, dict) or "access_token" not in data:
            raise AccessDeniedError(
                f"Expected Airflow at {self.base_url} to accept the user {login!r} of the connection, found status "
                f"{response.status_code}; correct the login or the password."
            )
        return str(data["access_token"])

    def airflow_version(self) -> str | None:
        """
        Return the version of Airflow, or ``None`` if the server is not Airflow.

        :raises CoordinatorUnavailableError: if the server does not respond.
        """
        data = _json(self._request("GET", f"{self.base_url}/api/v2/version", None, {}))
        return str(data["version"]) if isinstance(data, dict) and "version" in data else None

    def _read(self, verb: Verb, address: str, token: str) -> Any:
        try:
            return verb.decoded(self.get(address, token))
        except CheckpointNotFoundError:
            if verb.reads_one_row:
                return None
            raise

    def _send(self, method: str, path: str, token: str | None, body: Any) -> Any:
        url = url_of(self.base_url, path)
        return _content_of(self._request(method, url, body, headers_for(token)), url)

    def _request(self, method: str, url: str, body: Any, headers: dict[str, str]) -> httpx.Response:
        with _mapping_failures(self.base_url, url):
            return self._client.request(method, url, json=body, headers=headers)


class AsyncHttpClient:
    """
    Asynchronous client of one api-server.

    :param base_url: Root URL of the server, see :func:`root_url`.
    """

    def __init__(self, base_url: str, client: httpx.AsyncClient) -> None:
        self._base_url = base_url.rstrip("/")
        self._client = client

    async def request(self, method: str, path: str, token: str | None, body: Any = None) -> Any:
        """Send a request and return the reply; raises as :meth:`HttpClient.post`."""
        url = url_of(self._base_url, path)
        with _mapping_failures(self._base_url, url):
            response = await self._client.request(method, url, json=body, headers=headers_for(token))
        return _content_of(response, url)


def root_url(url: str) -> str:
    """
    Return the root URL of a server without a slash at its end.

    :raises InvalidConfigurationError: if the URL has a user or a password, which would be sent in place of the token
        and appear in errors.
    """
    if redact(url) != url:
        raise InvalidConfigurationError(
            f"Expected the URL of a server without a user and a password, found {redact(url)!r}; set the login and the "
            "password of the connection instead."
        )
    return url.rstrip("/")


def url_of(base_url: str, path: str) -> str:
    """Return the URL of a path of the API."""
    return f"{base_url}{MOUNT_PATH}{VERSION_PATH}/{path}"


def headers_for(token: str | None) -> dict[str, str]:
    """Return the headers with a token."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}


@contextmanager
def _mapping_failures(base_url: str, url: str) -> Iterator[None]:
    """
    Map the failure of a request without a reply to an error of this package.

    :raises CoordinatorUnavailableError: if the request did not reach the server.
    :raises CommitStateUnknownError: if the reply was lost.
    :raises InvalidConfigurationError: if the URL is invalid.
    :raises AccessDeniedError: if the token is not a valid header value.
    """
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
        raise CoordinatorUnavailableError(
            f"Expected the coordinator's API at {base_url}, found no server ({error}); nothing was changed."
        ) from error
    except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
        raise InvalidConfigurationError(
            f"Expected a URL such as http://localhost:8080, found {base_url!r} ({error}); correct [statecheck] api_url "
            "or the connection."
        ) from error
    except httpx.LocalProtocolError:
        # The text of the error quotes the header, which contains the token.
        raise AccessDeniedError(
            "Expected a token that is a valid header value, found one with other characters, such as a line break; "
            "correct the token."
        ) from None
    except httpx.TransportError as error:
        raise CommitStateUnknownError(
            f"The reply of {url} was lost ({type(error).__name__}), so the call may or may not have taken effect; "
            f"repeat it."
        ) from error


def _content_of(response: httpx.Response, url: str) -> Any:
    """
    Return the content of a reply.

    :raises StateCheckError: if the coordinator refuses the call, or the reply is that of another server.
    """
    data = _json(response)
    if response.is_success and data is not _NO_JSON:
        return data
    if isinstance(data, dict) and "code" in data and "message" in data:
        raise decode_error(data)
    raise _unexpected(response, url)


def _unexpected(response: httpx.Response, url: str) -> StateCheckError:
    found = f"found status {response.status_code}: {response.text[:200]!r}"
    if _is_transient(response):
        # A proxy may send such a reply after it forwarded the call, so the call may have taken effect.
        return CommitStateUnknownError(f"Expected a reply of the coordinator at {url}, {found}; repeat the call.")
    if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        return AccessDeniedError(
            f"Expected a reply of the coordinator at {url}, {found}; allow the caller in Airflow or in the proxy in "
            "front of it."
        )
    return CoordinatorError(
        f"Expected a reply of the coordinator at {url}, {found}; check that this provider is installed on the "
        "api-server and that [statecheck] api_url is the URL of that server."
    )


def _is_transient(response: httpx.Response) -> bool:
    status = response.status_code
    return status >= httpx.codes.INTERNAL_SERVER_ERROR or status == httpx.codes.TOO_MANY_REQUESTS


_NO_JSON = object()


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return _NO_JSON


class Credentials(Protocol):
    """Source of tokens for one task."""

    def obtain(self) -> str:
        """
        Return a new token that can register an attempt and read jobs.

        :raises AccessDeniedError: if the coordinator issues no token.
        :raises CoordinatorUnavailableError: if the coordinator does not respond.
        """


class GivenToken:
    """Credentials with a single token from another process."""

    def __init__(self, token: str) -> None:
        self._token = token

    def obtain(self) -> str:
        """Return the token."""
        return self._token

    def __repr__(self) -> str:
        return "GivenToken(***)"


@dataclass(frozen=True, slots=True)
class _Issued:
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class _Obtaining:
    """A token that a thread obtains."""

    token: Future[str] = field(default_factory=Future)
    thread: int = field(default_factory=threading.get_ident)

    def shared(self) -> str | None:
        """
        Return the token or raise its error, or return ``None`` for a caller that must obtain one itself.

        Such a caller is a handler of a signal in the same thread, or the thread was interrupted or takes too long.
        """
        if self.thread == threading.get_ident():
            return None
        try:
            return self.token.result(_LONGEST_WAIT_SECONDS)
        except CancelledError:
            return None
        except TimeoutError:
            if self.token.done():
                raise
            return None


class HttpCalls:
    """
    An interface of the coordinator over HTTP, with the token of a task: each method of the interface is a request.

    The token is replaced when it has expired, as in a garbage collection that takes longer than its validity.
    """

    def __init__(self, verbs: Mapping[str, Verb], client: HttpClient, credentials: Credentials) -> None:
        self._verbs = verbs
        self._client = client
        self._credentials = credentials
        self._token: str | None = None
        self._next: _Obtaining | None = None
        """The token that one thread obtains and others wait for."""
        # A handler of a signal may call while its thread has the lock.
        self._lock = threading.RLock()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or name not in self._verbs:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return partial(self._call, self._verbs[name])

    def _call(self, verb: Verb, *arguments: Any, **named: Any) -> Any:
        return self._as_task(lambda token: self._client.call(verb, token, *arguments, **named))

    def _as_task(self, send: Callable[[str], Any]) -> Any:
        token = self._task_token()
        try:
            return send(token)
        except TokenExpiredError:
            return send(self._task_token(expired=token))

    def _task_token(self, expired: str | None = None) -> str:
        # Maintenance calls in several threads, and a task can answer one challenge at a time.
        mine = _Obtaining()
        try:
            with self._lock:
                if self._token is not None and self._token != expired:
                    return self._token
                first = self._next = self._next or mine
            if first is not mine and (token := first.shared()) is not None:
                return token
            return self._obtained(mine)
        finally:
            # Also after an interrupt at any place above.
            with self._lock:
                self._next = None if self._next is mine else self._next
            mine.token.cancel()

    def _obtained(self, mine: _Obtaining) -> str:
        try:
            token = self._credentials.obtain()
        except Exception as error:
            # The others share it: otherwise each would wait in turn for a server that does not answer.
            mine.token.set_exception(error)
            raise
        self._token = token
        mine.token.set_result(token)
        return token


class HttpGateway(HttpCalls):
    """
    A ``StageGateway`` over HTTP.

    Each attempt has its own token. If it expires, the gateway obtains a new one and adopts the attempt with it.
    """

    def __init__(self, client: HttpClient, credentials: Credentials) -> None:
        super().__init__(STAGE_CALLS, client, credentials)
        self._tokens: dict[AttemptRef, str] = {}
        self._owners: dict[AttemptRef, AttemptOwner] = {}

    @classmethod
    def of_attempt(cls, client: HttpClient, attempt: AttemptRef, owner: AttemptOwner, token: str) -> Self:
        """Return a gateway that can act for one attempt, and begin no other one."""
        gateway = cls(client, GivenToken(token))
        gateway._know(attempt, token, owner)
        return gateway

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
        grant: AttemptGrant = self._client.call(self._verbs["register"], token, request)
        self._know(grant.attempt, token, request.owner)
        return grant

    def adopt(self, attempt: AttemptRef, owner: AttemptOwner) -> None:
        """Take over an attempt that still runs, in a later try of the same task."""
        token = self._credentials.obtain()
        self._client.call(self._verbs["adopt"], token, attempt, owner)
        self._know(attempt, token, owner)

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
        given = verb.signature.bind(*arguments, **named).arguments
        attempt: AttemptRef = given["attempt"] if "attempt" in given else given["request"].attempt
        with suppress(TokenExpiredError):
            return self._client.call(verb, self.token_of(attempt), **given)
        self.adopt(attempt, self._owners[attempt])
        return self._client.call(verb, self.token_of(attempt), **given)


class AsyncJobReader:
    """
    Reader of one job with a read token, which it can renew.

    :param base_url: Root URL of Airflow's api-server.
    """

    def __init__(self, base_url: str, token: str, client: httpx.AsyncClient) -> None:
        self._token = token
        self._client = AsyncHttpClient(base_url, client)

    async def describe(self, job_id: JobId) -> JobView:
        """
        Return a job with its newest checkpoints.

        :raises StateCheckError: if the coordinator refuses the call, or the connection fails.
        """
        view: JobView = await self._read(STAGE_CALLS["describe"], job_id=job_id)
        return view

    async def latest_checkpoints(
        self, job_id: JobId, known_version: RowsVersion | None = None
    ) -> LatestCheckpoints | None:
        """
        Return the newest readable checkpoint of each operator, or ``None`` if the version is the known one.

        :raises StateCheckError: as :meth:`describe`.
        """
        found: LatestCheckpoints | None = await self._read(
            STAGE_CALLS["latest_checkpoints"], job_id=job_id, known_version=known_version
        )
        return found

    async def renew(self) -> None:
        """
        Extend the token by 15 minutes.

        :raises TokenExpiredError: if the token has expired.
        :raises AccessDeniedError: if its task neither runs nor is deferred.
        :raises StateCheckError: as :meth:`describe`.
        """
        await self._client.request("POST", "token/renew", self._token)

    async def _read(self, verb: Verb, **arguments: Any) -> Any:
        data = await self._client.request("GET", verb.address(**arguments), self._token)
        # Decoding a job with many attempts would block the event loop.
        return verb.decoded(None) if data is None else await asyncio.to_thread(verb.decoded, data)
