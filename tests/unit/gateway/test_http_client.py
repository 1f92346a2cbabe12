"""The client of the API, and the errors that it raises."""

from __future__ import annotations

import json
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from airflow_provider_statecheck import exceptions
from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.exceptions import (
    AccessDeniedError,
    CommitStateUnknownError,
    CoordinatorError,
    CoordinatorUnavailableError,
    InvalidConfigurationError,
    StaleAttemptError,
    StateCheckError,
)
from airflow_provider_statecheck.gateway.http import GivenToken, HttpClient, HttpGateway
from airflow_provider_statecheck.gateway.verbs import decode_error, encode_error

TOKEN = "the-token-itself"
URL = "http://coordinator:8080"


def _answering(answer: Callable[[httpx.Request], httpx.Response]) -> HttpClient:
    return HttpClient(URL, httpx.Client(transport=httpx.MockTransport(answer)))


def _replying(status: int, **content: Any) -> HttpClient:
    return _answering(lambda _: httpx.Response(status, **content))


def _raising(error: Exception) -> HttpClient:
    def fail(_: httpx.Request) -> httpx.Response:
        raise error

    return _answering(fail)


def _failure(client: HttpClient) -> StateCheckError:
    with pytest.raises(StateCheckError) as caught:
        client.post("attempts/trigger", {"a": 1}, TOKEN)
    return caught.value


@contextmanager
def _server(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that treats one connection as it is told."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            connection, _ = listener.accept()
            with connection:
                serve(connection)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(timeout=60)


class TestARequestThatDidNotArrive:
    def test_no_server_means_that_nothing_was_changed(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        failure = _failure(HttpClient(f"http://127.0.0.1:{port}"))
        assert type(failure) is CoordinatorUnavailableError
        assert failure.retryable

    @pytest.mark.parametrize("error", [httpx.ConnectTimeout("slow"), httpx.PoolTimeout("full")])
    def test_neither_did_one_that_found_no_connection(self, error: Exception) -> None:
        assert type(_failure(_raising(error))) is CoordinatorUnavailableError

    @pytest.mark.parametrize("url", ["localhost:8080", "ftp://host", "", "http://", "http://host:port"])
    def test_an_address_that_is_none_is_not_tried_again(self, url: str) -> None:
        failure = _failure(HttpClient(url))
        assert isinstance(failure, InvalidConfigurationError | CoordinatorUnavailableError)
        if not url.startswith("http://"):
            assert not failure.retryable
            assert "api_url" in str(failure)

    @pytest.mark.parametrize("url", ["https://me:planted@coordinator", "https://planted@coordinator/airflow/"])
    def test_an_address_with_a_password_is_refused_without_showing_it(self, url: str) -> None:
        """The password would be sent in place of the token."""
        with pytest.raises(InvalidConfigurationError, match=r"'https://\*\*\*@coordinator.*login") as caught:
            HttpClient(url)
        assert "planted" not in str(caught.value)

    @pytest.mark.parametrize("token", [f"{TOKEN}\n", f"{TOKEN}\r\nX-Other: 1", f"{TOKEN}\x00"])
    def test_a_token_that_no_header_holds_is_refused_without_being_shown(self, token: str) -> None:
        def read(connection: socket.socket) -> None:
            connection.recv(1)

        with _server(read) as url:
            with pytest.raises(StateCheckError) as caught:
                HttpClient(url).get("jobs", token)
            socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))).close()  # lets the server end
        assert not caught.value.retryable
        assert TOKEN not in "".join(traceback.format_exception(caught.value))


class TestALostReply:
    @pytest.mark.parametrize(
        "error",
        [httpx.ReadTimeout("slow"), httpx.ReadError("reset"), httpx.WriteError("broken"), httpx.WriteTimeout("slow")],
    )
    def test_it_leaves_the_outcome_unknown(self, error: Exception) -> None:
        failure = _failure(_raising(error))
        assert type(failure) is CommitStateUnknownError
        assert failure.retryable

    @pytest.mark.parametrize("half", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"], ids=["none", "half"])
    def test_so_does_a_server_that_dies_before_the_end_of_its_reply(self, half: bytes) -> None:
        def serve(connection: socket.socket) -> None:
            connection.recv(65536)
            connection.sendall(half)

        with _server(serve) as url:
            assert type(_failure(HttpClient(url))) is CommitStateUnknownError

    def test_so_does_one_that_never_answers(self) -> None:
        done = threading.Event()

        def wait(_: socket.socket) -> None:
            done.wait(60)

        with _server(wait) as url:
            client = HttpClient(url, httpx.Client(timeout=httpx.Timeout(0.05, connect=5.0)))
            failure = _failure(client)
            done.set()
        assert type(failure) is CommitStateUnknownError


class TestAReplyOfSomethingElse:
    @pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
    def test_a_proxys_or_a_starting_servers_leaves_the_outcome_unknown(self, status: int) -> None:
        failure = _failure(_replying(status, html="<h1>Bad Gateway</h1>"))
        assert type(failure) is CommitStateUnknownError
        assert str(status) in str(failure)

    @pytest.mark.parametrize("content", [{"html": "<h1>Not Found</h1>"}, {"json": {"detail": "Not Found"}}])
    def test_another_apps_404_names_the_provider_and_is_not_repeated(self, content: dict[str, Any]) -> None:
        failure = _failure(_replying(404, **content))
        assert type(failure) is CoordinatorError
        assert "provider is installed" in str(failure)
        assert not failure.retryable

    @pytest.mark.parametrize("status", [401, 403])
    @pytest.mark.parametrize("content", [{"json": {"detail": "Not authenticated"}}, {"html": "<h1>Forbidden</h1>"}])
    def test_a_refusal_without_a_code_is_a_refusal(self, status: int, content: dict[str, Any]) -> None:
        assert type(_failure(_replying(status, **content))) is AccessDeniedError

    @pytest.mark.parametrize("status", [301, 302, 307, 308])
    def test_a_redirect_is_not_followed_with_the_token(self, status: int) -> None:
        seen: list[str] = []

        def redirect(request: httpx.Request) -> httpx.Response:
            seen.append(str(request.url))
            return httpx.Response(status, headers={"Location": "http://elsewhere/"})

        assert type(_failure(_answering(redirect))) is CoordinatorError
        assert len(seen) == 1

    @pytest.mark.parametrize("content", [{"html": "<h1>Welcome</h1>"}, {"content": b""}, {"text": "{"}])
    def test_a_success_without_json_is_none(self, content: dict[str, Any]) -> None:
        assert type(_failure(_replying(200, **content))) is CoordinatorError

    def test_json_of_another_form_is_named_as_another_version(self) -> None:
        gateway = HttpGateway(_replying(200, json={"unexpected": 1}), GivenToken(TOKEN))
        with pytest.raises(CoordinatorError, match="the same version of the provider"):
            gateway.jobs()
        with pytest.raises(CoordinatorError, match="the same version of the provider"):
            gateway.reading_token("0" * 32)  # type: ignore[arg-type]

    def test_an_error_of_the_coordinator_is_raised_again(self) -> None:
        reply = {"code": "stale_attempt", "message": "text", "attributes": {"current_epoch": 3}}
        failure = _failure(_replying(409, json=reply))
        assert type(failure) is StaleAttemptError
        assert failure.current_epoch == 3

    @pytest.mark.parametrize("reply", [None, [], "text", {"code": "stale_attempt"}, {"message": "text"}])
    def test_json_without_code_or_text_is_no_error_of_the_coordinator(self, reply: Any) -> None:
        assert type(_failure(_replying(409, json=reply))) is CoordinatorError


class TestLogIn:
    def _log_in(self, client: HttpClient) -> str:
        return client.log_in("someone", "the-password")

    def test_the_users_token_is_returned(self) -> None:
        assert self._log_in(_replying(201, json={"access_token": "x"})) == "x"

    @pytest.mark.parametrize(
        "reply", [(401, {"json": {"detail": "Invalid"}}), (200, {"json": []}), (404, {"html": "no"})]
    )
    def test_a_user_whom_airflow_does_not_know_is_refused(self, reply: tuple[int, dict[str, Any]]) -> None:
        with pytest.raises(AccessDeniedError, match="'someone'") as caught:
            self._log_in(_replying(reply[0], **reply[1]))
        assert "the-password" not in str(caught.value)

    @pytest.mark.parametrize("status", [429, 502, 503])
    def test_a_server_that_is_coming_up_is_waited_for(self, status: int) -> None:
        with pytest.raises(CoordinatorUnavailableError):
            self._log_in(_replying(status, html="<h1>Bad Gateway</h1>"))


def test_the_token_travels_in_its_header_alone() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json=[])

    assert _answering(answer).get("jobs", TOKEN) == []
    assert seen[0].headers["Authorization"] == f"Bearer {TOKEN}"
    assert TOKEN not in str(seen[0].url)
    assert str(seen[0].url) == f"{URL}/statecheck/v1/jobs"


def test_a_given_token_does_not_show_in_the_text_of_its_object() -> None:
    assert TOKEN not in repr(GivenToken(TOKEN)) + str(GivenToken(TOKEN))


def _tree(kind: type[StateCheckError]) -> Iterator[type[StateCheckError]]:
    yield kind
    for child in kind.__subclasses__():
        if child.__module__ == exceptions.__name__:
            yield from _tree(child)


KINDS = list(_tree(StateCheckError))


def _travel(error: StateCheckError) -> StateCheckError:
    return decode_error(json.loads(json.dumps(encode_error(error), allow_nan=False)))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_keeps_class_text_and_facts(kind: type[StateCheckError]) -> None:
    arrived = _travel(kind("Expected a, found b.", epoch=3, uid="x", ratio=0.5, flag=True, nothing=None))
    assert type(arrived) is kind
    assert str(arrived) == "Expected a, found b."
    assert vars(arrived) == {"epoch": 3, "uid": "x", "ratio": 0.5, "flag": True, "nothing": None}
    assert arrived.retryable == kind.retryable


def test_a_class_without_a_code_of_its_own_arrives_as_its_parent() -> None:
    # Another module has such a class, and whether it was imported before must make no difference.
    CheckpointConfig.from_mapping({})
    assert type(_travel(InvalidConfigurationError("Expected a, found b."))) is InvalidConfigurationError
    with pytest.raises(InvalidConfigurationError) as refused:
        CheckpointConfig.from_mapping({"execution.checkpointing.timeout": "1 ms"})
    assert type(_travel(refused.value)) is InvalidConfigurationError


def test_codes_are_told_apart() -> None:
    assert len({kind.code for kind in KINDS}) == len(KINDS)


@pytest.mark.parametrize("value", [object(), [1], {"a": 1}, (1,), b"x", {1}, float("nan"), float("inf"), Exception()])
def test_a_fact_that_is_no_plain_value_stays_behind(value: Any) -> None:
    assert vars(_travel(CoordinatorError("text", kept=1, left=value))) == {"kept": 1}


def test_a_reason_arrives_as_its_text() -> None:
    sent = exceptions.CheckpointDeclinedError("text", reason=CheckpointFailureReason.IO_EXCEPTION)
    assert _travel(sent).reason == "io_exception"


@pytest.mark.parametrize("code", ["of_a_newer_version", "", None, 7])
def test_an_unknown_code_is_a_coordinator_error_that_is_not_repeated(code: Any) -> None:
    arrived = decode_error({"code": code, "message": "text", "attributes": {"epoch": 1}})
    assert type(arrived) is CoordinatorError
    assert (str(arrived), arrived.epoch, arrived.retryable) == ("text", 1, False)


@pytest.mark.parametrize("sent", [{}, *({"attributes": each} for each in (None, [], "text", 5, [["a", 1]]))], ids=str)
def test_facts_of_another_form_are_left_out(sent: dict[str, Any]) -> None:
    assert vars(decode_error({"code": "coordinator", "message": "text"} | sent)) == {}


def test_a_fact_cannot_take_the_place_of_the_text() -> None:
    arrived = decode_error({"code": "coordinator", "message": "text", "attributes": {"message": "x", "self": "y"}})
    assert str(arrived) == "text"
