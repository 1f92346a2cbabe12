"""Clients of queryable state: servers that fail, limits, tokens, batches of many keys, and cancelled calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import httpx
import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.exceptions import (
    AccessDeniedError,
    CheckpointNotFoundError,
    CommitStateUnknownError,
    CoordinatorUnavailableError,
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    RequestLimitError,
    StateCheckError,
    StorageError,
    TokenExpiredError,
    UnknownKeyOrNamespaceError,
    UnknownKvStateIdError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.gateway.verbs import MAX_BODY_BYTES, encode_error
from airflow_provider_statecheck.queryable.client import AsyncQueryableStateClient, QueryableStateClient
from airflow_provider_statecheck.queryable.queries import ABSENT
from airflow_provider_statecheck.state.descriptors import StateKind, ValueStateDescriptor
from airflow_provider_statecheck.storage.failures import RetryPolicy
from tests.unit.queryable.replies import encoded, reply_of

A, B = "http://a", "http://b"
Answer = Callable[[httpx.Request], httpx.Response]


def failing(error: StateCheckError, status: int = 503) -> Answer:
    return lambda _: httpx.Response(status, json=encode_error(error))


def unreachable(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


def broken(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadError("reset", request=request)


def serving(checkpoint_id: int = 7) -> Answer:
    """Answer every key that is a text with its length, and other keys as absent."""

    def answer(request: httpx.Request) -> httpx.Response:
        keys = json.loads(request.content)["keys"]
        values = tuple(len(key) if key else ABSENT for key in keys)
        reply = reply_of(StateKind.VALUE, int, values, names=tuple(keys))
        return httpx.Response(200, json=encoded(replace(reply, checkpoint_id=checkpoint_id)))

    return answer


@dataclass
class Servers:
    """Servers by their hosts. Each gives its answers in order, and the last one from then on."""

    answers: dict[str, list[Answer]]
    asked: list[str] = field(default_factory=list)
    requests: list[httpx.Request] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def handle(self, request: httpx.Request) -> httpx.Response:
        host = f"http://{request.url.host}"
        self.asked.append(host[-1])
        self.requests.append(request)
        answers = self.answers[host]
        return (answers.pop(0) if len(answers) > 1 else answers[0])(request)

    def sleep(self, seconds: float) -> None:
        if seconds:
            self.pauses.append(seconds)
        self.seconds += seconds

    async def asleep(self, seconds: float) -> None:
        self.sleep(seconds)

    @property
    def retries(self) -> RetryPolicy:
        return RetryPolicy(
            attempts=3,
            first_pause_seconds=1.0,
            longest_pause_seconds=1.5,
            deadline_seconds=20.0,
            sleep=self.sleep,
            monotonic=lambda: self.seconds,
            random=lambda: 1.0,
        )

    def client(self, token: Any = None) -> Any:
        client = httpx.Client(transport=httpx.MockTransport(self.handle))
        return QueryableStateClient(list(self.answers), token, retries=self.retries, client=client)

    def async_client(self, token: Any = None) -> Any:
        client = httpx.AsyncClient(transport=httpx.MockTransport(self.handle))
        return Blocking(
            AsyncQueryableStateClient(list(self.answers), token, retries=self.retries, client=client, sleep=self.asleep)
        )


@dataclass(frozen=True)
class Blocking:
    """The asynchronous client, called like the synchronous one."""

    client: AsyncQueryableStateClient

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client, name)
        return lambda *args, **options: asyncio.run(method(*args, **options))


@pytest.fixture(params=["client", "async_client"])
def make(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Return the function that makes a client of one kind."""
    return lambda servers, token=None: getattr(servers, request.param)(token)


@pytest.mark.parametrize(
    "failure",
    [
        unreachable,
        broken,
        failing(StorageError("slow")),
        failing(EnvironmentNotReadyError("no credentials, run serve-state")),
        failing(CoordinatorUnavailableError("locked")),
        lambda _: httpx.Response(502, text="<html>"),
        lambda _: httpx.Response(503, text="starting"),
    ],
    ids=["unreachable", "broken", "storage", "no credentials", "database", "proxy", "starting"],
)
def test_a_call_goes_on_to_the_next_server_and_stays_there(make: Any, failure: Answer) -> None:
    servers = Servers({A: [failure], B: [serving()]})
    client = make(servers)
    assert [client.get("sales", "totals", key).value for key in ("x", "yy", "zzz")] == [1, 2, 3]
    assert servers.asked == ["a", "b", "b", "b"]
    assert servers.pauses == []


def test_rounds_over_all_servers_have_pauses_and_a_bound(make: Any) -> None:
    servers = Servers({A: [unreachable], B: [unreachable]})
    with pytest.raises(CoordinatorUnavailableError, match="http://b"):
        make(servers).get("sales", "totals", "x")
    assert servers.asked == ["a", "b"] * 3
    assert servers.pauses == [1.0, 1.5]


def test_a_server_that_returns_is_found_again(make: Any) -> None:
    servers = Servers({A: [unreachable, serving()], B: [broken]})
    assert make(servers).get("sales", "totals", "x").value == 1
    assert servers.asked == ["a", "b", "a"]


def test_servers_without_credentials_are_each_asked_once(make: Any) -> None:
    servers = Servers(
        {A: [failing(EnvironmentNotReadyError("run serve-state"))], B: [failing(EnvironmentNotReadyError("b"))]}
    )
    with pytest.raises(EnvironmentNotReadyError):
        make(servers).get("sales", "totals", "x")
    assert servers.asked == ["a", "b"]


@pytest.mark.parametrize(("failures", "pauses"), [(1, [1.0]), (2, [1.0, 1.5])])
def test_a_server_without_credentials_does_not_end_the_rounds_over_the_others(
    make: Any, failures: int, pauses: list[float]
) -> None:
    servers = Servers({A: [failing(EnvironmentNotReadyError("a"))], B: [*[unreachable] * failures, serving()]})
    assert make(servers).get("sales", "totals", "x").value == 1
    assert servers.asked == ["a", "b", *"b" * failures]
    assert servers.pauses == pauses


def test_the_failure_of_a_server_that_can_serve_is_raised_rather_than_the_lack_of_credentials(make: Any) -> None:
    servers = Servers({A: [unreachable], B: [failing(EnvironmentNotReadyError("b"))]})
    with pytest.raises(CoordinatorUnavailableError, match="http://a"):
        make(servers).get("sales", "totals", "x")
    assert servers.asked == ["a", "b", "a", "a"]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (CheckpointNotFoundError("no job"), 404),
        (AccessDeniedError("not yours"), 403),
        (TokenExpiredError("expired"), 401),
        (RequestLimitError("too many keys", retry_after_seconds=None), 413),
    ],
)
def test_an_answer_that_no_repetition_changes_is_raised_at_once(make: Any, error: StateCheckError, status: int) -> None:
    servers = Servers({A: [failing(error, status)], B: [serving()]})
    with pytest.raises(type(error), match=str(error)):
        make(servers, "token").get("sales", "totals", "x")
    assert servers.asked == ["a"]


def test_a_caller_that_was_too_fast_waits_as_long_as_the_server_says(make: Any) -> None:
    slow_down = failing(RequestLimitError("too fast", retry_after_seconds=2.5), 429)
    servers = Servers({A: [slow_down, slow_down, serving()], B: [serving()]})
    assert make(servers).get("sales", "totals", "x").value == 1
    assert (servers.asked, servers.pauses) == (["a"] * 3, [2.5, 2.5])


def test_a_caller_that_may_come_back_at_once_still_pauses(make: Any) -> None:
    servers = Servers({A: [failing(RequestLimitError("too fast", retry_after_seconds=0.0), 429), serving()]})
    assert make(servers).get("sales", "totals", "x").value == 1
    assert len(servers.pauses) == 1
    assert servers.pauses[0] > 0


def test_a_wait_beyond_the_deadline_is_an_error_without_waiting(make: Any) -> None:
    servers = Servers({A: [failing(RequestLimitError("too fast", retry_after_seconds=21.0), 429)]})
    with pytest.raises(RequestLimitError) as caught:
        make(servers).get("sales", "totals", "x")
    assert (servers.pauses, caught.value.retry_after_seconds) == ([], 21.0)


def test_the_deadline_ends_a_call_whose_requests_take_long(make: Any) -> None:
    servers = Servers({A: [unreachable]})

    def slow(request: httpx.Request) -> httpx.Response:
        servers.seconds += 12.0
        raise httpx.ReadTimeout("slow", request=request)

    servers.answers[A] = [slow]
    with pytest.raises(CommitStateUnknownError):
        make(servers).get("sales", "totals", "x")
    assert len(servers.asked) == 2


def test_an_expired_token_is_obtained_again_once(make: Any) -> None:
    tokens = iter(["old", "new"])
    servers = Servers({A: [failing(TokenExpiredError("expired"), 401), serving()]})
    client = make(servers, lambda: next(tokens))
    client.get("sales", "totals", "x")
    client.get("sales", "totals", "y")
    assert [each.headers["Authorization"] for each in servers.requests] == ["Bearer old", "Bearer new", "Bearer new"]


def test_a_new_token_that_has_expired_too_is_an_error(make: Any) -> None:
    servers = Servers({A: [failing(TokenExpiredError("expired"), 401)]})
    with pytest.raises(TokenExpiredError):
        make(servers, lambda: "old").get("sales", "totals", "x")
    assert len(servers.asked) == 2


@pytest.mark.parametrize("token", ["secret-token", lambda: "secret-token"])
def test_the_text_of_a_client_has_no_token(make: Any, token: Any) -> None:
    servers = Servers({A: [serving()]})
    reader = make(servers, token)
    reader.get("sales", "totals", "x")
    client = reader.client if isinstance(reader, Blocking) else reader
    assert "secret" not in repr(client) + repr(vars(client))
    assert A in repr(client)


@pytest.mark.parametrize("servers", ["", [], [A, ""], [A, "https://me:planted@server"]])
@pytest.mark.parametrize("client", [QueryableStateClient, AsyncQueryableStateClient])
def test_a_client_without_usable_servers_is_refused(client: Any, servers: Any) -> None:
    with pytest.raises(InvalidConfigurationError, match="URL of a server") as caught:
        client(servers)
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize("keys", ["x", b"x"])
def test_a_single_text_is_not_read_as_the_keys_of_its_characters(make: Any, keys: Any) -> None:
    servers = Servers({A: [serving()]})
    with pytest.raises(InvalidConfigurationError, match="several keys, found the single key"):
        make(servers).get_many("sales", "totals", keys)
    assert servers.asked == []


def test_a_key_without_state_is_an_error_for_one_key_and_left_out_of_many(make: Any) -> None:
    servers = Servers({A: [serving()]})
    with pytest.raises(UnknownKeyOrNamespaceError, match="'totals-by-user' for the key ''"):
        make(servers).get("sales", "totals", "")
    many = make(servers).get_many("sales", "totals", ["x", "", "yy"])
    assert (many.found, many.values) == ({"x": 1, "yy": 2}, (1, ABSENT, 2))


def test_a_job_is_given_by_name_or_id_and_a_name_may_have_any_character(make: Any) -> None:
    servers = Servers({A: [serving()]})
    for job in ("sales", job_id_of("sales")):
        make(servers).get(job, "totals[eu]/net 100%", "x")
    paths = {each.url.raw_path.decode() for each in servers.requests}
    assert paths == {f"/statecheck/v1/jobs/{job_id_of('sales')}/state/totals%5Beu%5D%2Fnet%20100%25"}


@pytest.mark.parametrize(
    ("key", "sent"),
    [
        ("a", "a"),
        (7, 7),
        (True, True),
        (1.5, 1.5),
        (float("-inf"), "-Infinity"),
        (b"\x00", "AA=="),
        (Decimal("1.50"), "1.50"),
        (date(2026, 1, 31), "2026-01-31"),
        (datetime(2026, 1, 31, 1, tzinfo=timezone(timedelta(hours=2))), "2026-01-30T23:00:00+00:00"),
        (datetime(2026, 1, 31, fold=1), "2026-01-31T00:00:00"),  # noqa: DTZ001
        (("a", date(2026, 1, 31), 3), ["a", "2026-01-31", 3]),
        (StateKind.VALUE, "value"),
    ],
)
def test_a_key_is_sent_as_the_server_parses_it(make: Any, key: Any, sent: Any) -> None:
    servers = Servers({A: [failing(CheckpointNotFoundError("no job"), 404)]})
    at = datetime(2026, 2, 1, tzinfo=UTC)
    with pytest.raises(CheckpointNotFoundError):
        make(servers).get("sales", "totals", key, user_key=(1, "x"), namespace="eu", at=at)
    assert json.loads(servers.requests[0].content) == {
        "keys": [sent],
        "namespace": "eu",
        "user_key": [1, "x"],
        "at": "2026-02-01T00:00:00+00:00",
    }


def test_an_object_that_cannot_be_a_key_is_refused_before_a_request(make: Any) -> None:
    servers = Servers({A: [serving()]})
    with pytest.raises(UnsupportedStateError, match=r"builtins\.object"):
        make(servers).get("sales", "totals", object())
    assert servers.asked == []


@pytest.mark.parametrize("key", [b"abc", date(2026, 1, 31), Decimal("1.5")], ids=str)
def test_a_key_that_only_its_json_fits_the_column_is_refused_as_in_process(make: Any, key: Any) -> None:
    servers = Servers({A: [serving()]})
    with pytest.raises(UnsupportedStateError, match="as the part"):
        make(servers).get_many("sales", "totals", [key])


def test_an_immutable_state_comes_from_the_descriptor(make: Any) -> None:
    servers = Servers({A: [serving()]})
    state = make(servers).get_kv_state("sales", "totals", "abc", ValueStateDescriptor("any", int))
    assert state.value() == 3


def test_names_are_asked_of_a_checkpoint(make: Any) -> None:
    listed = {
        "name": "totals",
        "uid": "stage/totals",
        "kind": "value",
        "key_columns": [["user", "string"]],
        "value_type": "int64",
        "expires": False,
        "checkpoint_id": 3,
        "pointer": "s3://lake/chk-3",
    }
    servers = Servers({A: [lambda _: httpx.Response(200, json=[listed])]})
    (name,) = make(servers).names("sales", checkpoint_id=3)
    assert (name.name, name.kind, name.key_columns) == ("totals", StateKind.VALUE, (("user", "string"),))
    assert servers.requests[0].url.params == httpx.QueryParams({"checkpoint_id": "3"})


MANY = [f"{i:06}" for i in range(2500)]


def test_many_keys_are_read_from_the_checkpoint_of_the_first_request(make: Any) -> None:
    servers = Servers({A: [serving(7)]})
    reply = make(servers).get_many("sales", "totals", iter(MANY))
    bodies = [json.loads(each.content) for each in servers.requests]
    assert [(len(body["keys"]), body.get("checkpoint_id")) for body in bodies] == [(1000, None), (1000, 7), (500, 7)]
    assert (list(reply.keys), len(reply.found)) == (MANY, 2500)


@pytest.mark.parametrize("gone", [CheckpointNotFoundError("subsumed"), UnknownKvStateIdError("deleted")])
def test_a_read_of_many_keys_starts_over_if_its_checkpoint_was_subsumed(make: Any, gone: StateCheckError) -> None:
    servers = Servers({A: [serving(7), failing(gone, 404), serving(8)]})
    reply = make(servers).get_many("sales", "totals", MANY)
    bodies = [json.loads(each.content) for each in servers.requests]
    assert [body.get("checkpoint_id") for body in bodies] == [None, 7, None, 8, 8]
    assert (reply.checkpoint_id, list(reply.keys)) == (8, MANY)


def test_a_read_of_many_keys_that_always_loses_its_checkpoint_ends(make: Any) -> None:
    gone = failing(CheckpointNotFoundError("subsumed"), 404)
    servers = Servers({A: [each for number in range(1, 9) for each in (serving(number), gone)]})
    with pytest.raises(CheckpointNotFoundError):
        make(servers).get_many("sales", "totals", MANY)
    assert len(servers.asked) == 10


def test_a_named_checkpoint_that_is_gone_is_an_error_at_once(make: Any) -> None:
    servers = Servers({A: [serving(3), failing(CheckpointNotFoundError("gone"), 404)]})
    with pytest.raises(CheckpointNotFoundError):
        make(servers).get_many("sales", "totals", MANY, checkpoint_id=3)
    assert len(servers.asked) == 2


def bounded(*, body: int = MAX_BODY_BYTES, keys: int) -> Answer:
    """Refuse a body above the limit, and a request for more keys than fit an answer."""
    answer, refuse = serving(), failing(RequestLimitError("Expected less."), 413)

    def limited(request: httpx.Request) -> httpx.Response:
        is_small = len(request.content) <= body and len(json.loads(request.content)["keys"]) <= keys
        return answer(request) if is_small else refuse(request)

    return limited


@pytest.mark.parametrize("letter", ["x", "é", "😀", '"'])
def test_large_keys_are_read_by_requests_that_servers_accept(make: Any, letter: str) -> None:
    servers = Servers({A: [bounded(keys=1000)]})
    keys = [f"{i}" + letter * 3000 for i in range(600)]
    reply = make(servers).get_many("sales", "totals", keys, namespace="n" * 100_000)
    sizes = [len(each.content) for each in servers.requests]
    assert list(reply.keys) == keys
    assert max(sizes) <= MAX_BODY_BYTES
    assert letter != "x" or min(sizes[:-1]) > 0.99 * MAX_BODY_BYTES


def test_keys_of_a_request_that_is_refused_as_too_large_are_split_in_halves(make: Any) -> None:
    servers = Servers({A: [bounded(keys=300)]})
    reply = make(servers).get_many("sales", "totals", MANY)
    bodies = [json.loads(each.content) for each in servers.requests]
    accepted = [len(body["keys"]) for body in bodies if len(body["keys"]) <= 300]
    assert (list(reply.keys), list(reply.found)) == (MANY, MANY)
    assert accepted == [250] * 10
    assert len(bodies) == 10 + 7
    assert [body.get("checkpoint_id") for body in bodies[:4]] == [None, None, None, 7]


def test_single_key_that_is_too_large_is_an_error(make: Any) -> None:
    servers = Servers({A: [bounded(body=5000, keys=1000)]})
    with pytest.raises(RequestLimitError):
        make(servers).get_many("sales", "totals", ["a", "x" * 5000, "b"])
    assert [len(json.loads(each.content)["keys"]) for each in servers.requests] == [3, 1, 2, 1]


def test_no_keys_have_no_values(make: Any) -> None:
    assert make(Servers({A: [serving()]})).get_many("sales", "totals", []).found == {}


def test_a_cancelled_call_cancels_its_request() -> None:
    async def run() -> list[str]:
        events: list[str] = []
        begun = asyncio.Event()

        async def hang(_: httpx.Request) -> httpx.Response:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                events.append("request ended")
            raise AssertionError("unreachable")

        client = httpx.AsyncClient(transport=httpx.MockTransport(hang))
        async with AsyncQueryableStateClient([A, B], client=client) as reader:
            call = asyncio.create_task(reader.get("sales", "totals", "x"))
            await begun.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            events.append("call ended")
        return events

    assert asyncio.run(run()) == ["request ended", "call ended"]


def test_a_client_closes_its_own_connections_but_not_those_that_it_was_given() -> None:
    given = httpx.Client(transport=httpx.MockTransport(serving()))
    with QueryableStateClient(A, client=given) as client:
        assert client.get("sales", "totals", "x").value == 1
    assert not given.is_closed
    with QueryableStateClient(A) as client:
        pass
    with pytest.raises(RuntimeError, match="closed"):
        client.get("sales", "totals", "x")
