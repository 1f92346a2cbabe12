"""Clients of queryable state over HTTP, blocking and asynchronous, with failover between servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, Unpack, cast, overload
from urllib.parse import quote, urlencode

from airflow_provider_statecheck.checkpoint.codec import read_reply
from airflow_provider_statecheck.checkpoint.ids import given_job_id
from airflow_provider_statecheck.exceptions import (
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    RequestLimitError,
    StateCheckError,
    TokenExpiredError,
)
from airflow_provider_statecheck.gateway.http import AsyncHttpClient, HttpClient, root_url
from airflow_provider_statecheck.gateway.time_travel import AsOf
from airflow_provider_statecheck.gateway.verbs import MAX_BODY_BYTES
from airflow_provider_statecheck.lazy import httpx
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.queryable.answers import decode_reply
from airflow_provider_statecheck.queryable.immutable_states import immutable_state
from airflow_provider_statecheck.queryable.json_values import key_json
from airflow_provider_statecheck.queryable.queries import JsonUserKey, PythonKeys, QueryableName, StateQuery, StateReply
from airflow_provider_statecheck.queryable.reads import (
    KEYS_PER_REQUEST,
    CheckpointChoice,
    ReadOptions,
    StateReads,
    in_batches,
    query_of,
    several,
)
from airflow_provider_statecheck.state.reading.state_reader import restored_keys
from airflow_provider_statecheck.state.serializers.resolve import restored_user_keys
from airflow_provider_statecheck.storage.failures import RetryPolicy

if TYPE_CHECKING:
    from airflow_provider_statecheck.queryable.immutable_states import (
        ImmutableAggregatingState,
        ImmutableFoldingState,
        ImmutableListState,
        ImmutableMapState,
        ImmutableReducingState,
        ImmutableValueState,
    )
    from airflow_provider_statecheck.state.descriptors import (
        AggregatingStateDescriptor,
        FoldingStateDescriptor,
        ListStateDescriptor,
        MapStateDescriptor,
        ReducingStateDescriptor,
        ValueStateDescriptor,
    )

T = TypeVar("T")
V = TypeVar("V")
Acc = TypeVar("Acc")

RETRIES: Final = RetryPolicy(attempts=4, first_pause_seconds=0.1, longest_pause_seconds=2.0, deadline_seconds=30.0)
"""Three more rounds over all servers after the first one; no request begins later than 30 seconds after the call."""
TIMEOUT_SECONDS: Final = 10.0
"""Timeout of one request in seconds."""
_CONNECT_TIMEOUT_SECONDS = 3.0
Token = str | Callable[[], str] | None
"""Token of a caller, or a function that returns one."""


class QueryableStateClient(StateReads):
    """
    Client of queryable state on Airflow's api-server, or on stand-alone servers. Safe for threads.

    A call goes to the server that answered last. If that server does not respond, or cannot serve state, the call goes
    to the next one. After a rejection for too many requests, the call waits for the time that the server names.

    .. code-block:: python

        with QueryableStateClient("http://localhost:8080", token) as client:
            total = client.get("sales", "totals", "user-7").value

    :param servers: Root URL of a server, or of several, such as ``https://airflow.example.com``.
    :param token: Token of an Airflow user or a read token of the job, or a function that returns one; the function is
        called at the first request and after the token has expired.
    :param timeout_seconds: Timeout of one request.
    :param retries: Number and pauses of the rounds over all servers, and the time in which the requests of a call
        begin.
    :param client: Client for the requests, such as one with other certificates; the caller closes it.
    :raises InvalidConfigurationError: if there is no server, or its URL has a user or a password.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        token: Token = None,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        retries: RetryPolicy = RETRIES,
        client: httpx.Client | None = None,
    ) -> None:
        self._servers = _Servers(servers, retries)
        self._token = _Token(token)
        self._client = client or httpx.Client(timeout=_timeout(timeout_seconds))
        self._is_own = client is None
        self._clients = [HttpClient(url, self._client) for url in self._servers.urls]

    def ask(self, query: StateQuery) -> StateReply:
        """Return the reply to a query; raises as ``StateReads.ask``, and ``StateCheckError`` if no server answers."""
        found = self._call(lambda client, token: client.post(_state_path(query), _body_of(query), token))
        return _checked(query, decode_reply(found))

    def names(self, job: str, **checkpoint: Unpack[CheckpointChoice]) -> tuple[QueryableName, ...]:
        """Return the queryable states of a job; raises as ``StateReads.names``."""
        path = _names_path(job, checkpoint)
        return read_reply(tuple[QueryableName, ...], self._call(lambda client, token: client.get(path, token)))

    @override
    def _parts(self, query: StateQuery, keys: tuple[Any, ...]) -> Iterable[tuple[Any, ...]]:
        return _requests_of(query, keys)

    def close(self) -> None:
        """Close the connections."""
        if self._is_own:
            self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"QueryableStateClient({self._servers.urls!r})"

    def _call(self, send: Callable[[HttpClient, str | None], Any]) -> Any:
        requests = _Requests(self._servers)
        while True:
            try:
                found = self._authorized(partial(send, self._clients[requests.place]))
            except StateCheckError as error:
                self._servers.retries.sleep(requests.failed(error))
            else:
                requests.answered()
                return found

    def _authorized(self, send: Callable[[str | None], Any]) -> Any:
        try:
            return send(self._token.known or self._token.obtain())
        except TokenExpiredError:
            if not self._token.is_renewable:
                raise
        return send(self._token.obtain())


class AsyncQueryableStateClient:
    """
    Asynchronous form of :class:`QueryableStateClient`. Cancelling a call cancels its request.

    :param servers: Root URL of a server, or of several.
    :param token: Token, or a function that returns one, which is called in a thread.
    :param timeout_seconds: Timeout of one request.
    :param retries: Number and pauses of the rounds over all servers, and the time in which the requests of a call
        begin.
    :param client: Client for the requests; the caller closes it.
    :param sleep: Coroutine function that waits for a number of seconds.
    :raises InvalidConfigurationError: if there is no server, or its URL has a user or a password.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        token: Token = None,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        retries: RetryPolicy = RETRIES,
        client: httpx.AsyncClient | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._servers = _Servers(servers, retries)
        self._token = _Token(token)
        self._client = client or httpx.AsyncClient(timeout=_timeout(timeout_seconds))
        self._is_own = client is None
        self._clients = [AsyncHttpClient(url, self._client) for url in self._servers.urls]
        self._sleep = sleep

    async def ask(self, query: StateQuery) -> StateReply:
        """Return the reply to a query; raises as :meth:`QueryableStateClient.ask`."""
        found = await self._call(
            lambda client, token: client.request("POST", _state_path(query), token, _body_of(query))
        )
        return _checked(query, decode_reply(found))

    async def names(self, job: str, **checkpoint: Unpack[CheckpointChoice]) -> tuple[QueryableName, ...]:
        """Return the queryable states of a job; raises as ``StateReads.names``."""
        path = _names_path(job, checkpoint)
        found = await self._call(lambda client, token: client.request("GET", path, token))
        return read_reply(tuple[QueryableName, ...], found)

    async def get(
        self, job: str, name: str, key: Any, *, user_key: Any = None, **options: Unpack[ReadOptions]
    ) -> StateReply:
        """Return the reply for one key; see ``StateReads.get``."""
        return (await self.ask(query_of(job, name, (key,), user_key, **options))).present()

    async def get_many(
        self, job: str, name: str, keys: Iterable[Any], *, user_key: Any = None, **options: Unpack[ReadOptions]
    ) -> StateReply:
        """Return the reply for many keys, all from one checkpoint; see ``StateReads.get_many``."""
        query = query_of(job, name, (), user_key, **options)
        batches = in_batches(query, _requests_of(query, several(keys)))
        try:
            query = next(batches)
            while True:
                try:
                    reply = await self.ask(query)
                except StateCheckError as error:
                    query = batches.throw(error)
                else:
                    query = batches.send(reply)
        except StopIteration as done:
            joined: StateReply = done.value
            return joined

    @overload
    async def get_kv_state(
        self, job: str, name: str, key: Any, descriptor: ValueStateDescriptor[T], **options: Unpack[ReadOptions]
    ) -> ImmutableValueState[T]: ...
    @overload
    async def get_kv_state(
        self, job: str, name: str, key: Any, descriptor: ListStateDescriptor[T], **options: Unpack[ReadOptions]
    ) -> ImmutableListState[T]: ...
    @overload
    async def get_kv_state(
        self, job: str, name: str, key: Any, descriptor: ReducingStateDescriptor[T], **options: Unpack[ReadOptions]
    ) -> ImmutableReducingState[T]: ...
    @overload
    async def get_kv_state(
        self, job: str, name: str, key: Any, descriptor: AggregatingStateDescriptor[Any], **options: Unpack[ReadOptions]
    ) -> ImmutableAggregatingState[Any, Any]: ...
    @overload
    async def get_kv_state(
        self, job: str, name: str, key: Any, descriptor: FoldingStateDescriptor[Acc], **options: Unpack[ReadOptions]
    ) -> ImmutableFoldingState[Any, Acc]: ...
    @overload
    async def get_kv_state(
        self, job: str, name: str, key: Any, descriptor: MapStateDescriptor[V], **options: Unpack[ReadOptions]
    ) -> ImmutableMapState[Any, V]: ...
    async def get_kv_state(self, job: str, name: str, key: Any, descriptor: Any, **options: Unpack[ReadOptions]) -> Any:
        """Return the state of one key as an immutable state; see ``StateReads.get_kv_state``."""
        return immutable_state(await self.get(job, name, key, **options), descriptor)

    async def aclose(self) -> None:
        """Close the connections."""
        if self._is_own:
            await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"AsyncQueryableStateClient({self._servers.urls!r})"

    async def _call(self, send: Callable[[AsyncHttpClient, str | None], Awaitable[Any]]) -> Any:
        requests = _Requests(self._servers)
        while True:
            try:
                found = await self._authorized(partial(send, self._clients[requests.place]))
            except StateCheckError as error:
                await self._sleep(requests.failed(error))
            else:
                requests.answered()
                return found

    async def _authorized(self, send: Callable[[str | None], Awaitable[Any]]) -> Any:
        try:
            return await send(self._token.known or await asyncio.to_thread(self._token.obtain))
        except TokenExpiredError:
            if not self._token.is_renewable:
                raise
        return await send(await asyncio.to_thread(self._token.obtain))


class _Servers:
    """
    Servers of a client, which all its calls share.

    :param servers: One root URL, or several.
    :param retries: Bounds and pauses of the calls.
    """

    def __init__(self, servers: str | Sequence[str], retries: RetryPolicy) -> None:
        given = (servers,) if isinstance(servers, str) else tuple(servers)
        if not all(given) or not given:
            raise InvalidConfigurationError(
                f"Expected the URL of a server, such as http://localhost:8080, or several, found {servers!r}; pass one."
            )
        self.urls = tuple(map(root_url, given))
        self.retries = retries
        self.preferred = 0
        """Place of the server that answered last."""


class _Requests:
    """Requests of one call."""

    def __init__(self, servers: _Servers) -> None:
        self._servers = servers
        self._started = servers.retries.monotonic()
        self._without_state: set[int] = set()
        self._passing: StateCheckError | None = None
        self._steps = self._places(servers.preferred)
        self.place, _ = next(self._steps)
        """Place of the server of the next request."""

    def answered(self) -> None:
        """Prefer this server from now on."""
        self._servers.preferred = self.place

    def failed(self, error: StateCheckError) -> float:
        """
        Choose the server of the next request and return the pause before it in seconds.

        Raise the error if there is none.
        """
        if isinstance(error, RequestLimitError):
            wanted = error.retry_after_seconds
            # A server that asks for no pause must not be called in a loop without one.
            least = self._servers.retries.first_pause_seconds
            return self._within_deadline(None if wanted is None else max(wanted, least), error)
        if isinstance(error, EnvironmentNotReadyError):
            self._without_state.add(self.place)
        elif error.retryable:
            self._passing = error
        else:
            raise error
        return self._to_next_server(error)

    def _to_next_server(self, error: StateCheckError) -> float:
        # The failure of a server that can serve state says more than the lack of credentials of another one.
        if self._passing is not None and len(self._without_state) < len(self._servers.urls):
            error = self._passing
        step = next(self._steps, None)
        if step is None:
            raise error
        self.place, pause = step
        return self._within_deadline(pause, error)

    def _places(self, first: int) -> Iterator[tuple[int, float]]:
        """Yield the place of each request and the pause before it; skip servers that cannot serve state."""
        count = len(self._servers.urls)
        for number in range(self._servers.retries.attempts):
            pause = self._servers.retries.pause_after(number) if number else 0.0
            for place in (*range(first, count), *range(first)):
                if place not in self._without_state:
                    yield place, pause
                    pause = 0.0

    def _within_deadline(self, pause: float | None, error: StateCheckError) -> float:
        policy = self._servers.retries
        if pause is None or policy.monotonic() - self._started + pause > policy.deadline_seconds:
            raise error
        return pause


class _Token:
    """
    Token of a client. One from a function is kept until it has expired.

    :param given: The token, a function that returns it, or ``None``.
    """

    def __init__(self, given: Token) -> None:
        self._given = given
        self.known = given if isinstance(given, str) else None
        self.is_renewable = callable(given)

    def obtain(self) -> str | None:
        """Return a new token, or ``None`` if the client has none."""
        if callable(self._given):
            self.known = self._given()
        return self.known


def _timeout(seconds: float) -> httpx.Timeout:
    return httpx.Timeout(seconds, connect=min(seconds, _CONNECT_TIMEOUT_SECONDS))


def _state_path(query: StateQuery) -> str:
    return f"jobs/{query.job_id}/state/{quote(query.name, safe='')}"


def _names_path(job: str, checkpoint: CheckpointChoice) -> str:
    chosen = urlencode(_chosen(AsOf(**checkpoint)))
    return f"jobs/{given_job_id(job)}/state" + (f"?{chosen}" if chosen else "")


def _chosen(as_of: AsOf) -> dict[str, Any]:
    at = None if as_of.at is None else as_of.at.isoformat()
    given = {"checkpoint_id": as_of.checkpoint_id, "pointer": as_of.pointer, "at": at}
    return {name: value for name, value in given.items() if value is not None}


def _requests_of(query: StateQuery, keys: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return the keys of each request, so that no body exceeds the limit unless it has a single key."""
    room = MAX_BODY_BYTES - _json_bytes(_body_of(query))
    parts, size = list[list[Any]]([[]]), 0
    for key in keys:
        nbytes = _json_bytes(key_json(key)) + len(", ")
        if parts[-1] and (len(parts[-1]) == KEYS_PER_REQUEST or size + nbytes > room):
            parts.append([])
            size = 0
        parts[-1].append(key)
        size += nbytes
    return [tuple(part) for part in parts]


def _json_bytes(data: Any) -> int:
    # This form is never shorter than that of httpx, which need not escape characters.
    return len(json.dumps(data))


def _body_of(query: StateQuery) -> dict[str, Any]:
    # A query for a client has Python keys, and its user key in the form of json_of.
    keys, user_key = cast("PythonKeys", query.keys), cast("JsonUserKey | None", query.user_key)
    return {
        "keys": list(map(key_json, keys.values)),
        "namespace": query.namespace,
        "user_key": None if user_key is None else user_key.value,
        **_chosen(query.as_of),
    }


def _checked(query: StateQuery, reply: StateReply) -> StateReply:
    """
    Return a reply whose types are those of the keys of the query.

    A server that receives JSON takes a text for any other value that is a text in JSON, and ``"42"`` for ``42``.

    :raises UnsupportedStateError: if a key has another type than its column, or the user key than the keys of the map.
    """
    query.keys.decoded(restored_keys(reply.key))
    if query.user_key is not None and reply.schema.key is not None:
        query.user_key.decoded(restored_user_keys(reply.schema.key))
    return reply
