"""What a call of an interface is over HTTP: its path, its message and its reply."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import pytest

from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.records import CheckpointStatus, RowsVersion
from airflow_provider_statecheck.checkpoint.store import CheckpointPage
from airflow_provider_statecheck.exceptions import (
    CoordinatorError,
    CoordinatorUnavailableError,
    StateCheckError,
    TokenExpiredError,
)
from airflow_provider_statecheck.gateway.http import GivenToken, HttpCalls, HttpClient
from airflow_provider_statecheck.gateway.verbs import STAGE_CALLS, verbs_of

JOB = JobId("0" * 32)
VERSION = RowsVersion(57, datetime(2026, 1, 1, tzinfo=UTC))


@dataclass(frozen=True, kw_only=True)
class Rename:
    job_id: JobId
    name: str = "new"


class Interface(Protocol):
    """Calls that the tests add."""

    def rename_job(self, request: Rename) -> tuple[int, ...]:
        """Rename a job, or return ``None``."""

    def touch(self, job_id: JobId, seconds: float) -> None:
        """Touch a job."""


class Answering:
    """A client that notes what was sent, and gives the same reply to everything."""

    def __init__(self, reply: Any) -> None:
        self.reply = reply
        self.sent: list[Any] = []

    def post(self, *request: Any) -> Any:
        self.sent.append(request)
        return self.reply

    get = post
    call = HttpClient.call


class Rows:
    """The object behind the API."""

    def rename_job(self, request: Rename) -> tuple[int, ...]:
        return (len(request.name),)

    def touch(self, job_id: JobId, seconds: float) -> None:
        assert (job_id, seconds) == (JOB, 2.5)


def calls(reply: Any) -> tuple[Any, Answering]:
    client: Any = Answering(reply)
    return HttpCalls(verbs_of(Interface, "jobs-of-test"), client, GivenToken("token")), client


def test_a_new_method_of_an_interface_is_a_call_without_further_code() -> None:
    remote, client = calls([3, 4])
    assert remote.rename_job(Rename(job_id=JOB)) == (3, 4)
    assert client.sent == [("jobs-of-test/rename-job", {"job_id": JOB, "name": "new"}, "token")]


def test_parameters_without_a_message_are_the_fields_of_one() -> None:
    remote, client = calls("anything, because nothing is returned")
    assert remote.touch(JOB, seconds=2.5) is None
    assert client.sent == [("jobs-of-test/touch", {"job_id": JOB, "seconds": 2.5}, "token")]


def test_the_server_gives_the_message_to_the_method_of_the_same_name() -> None:
    verbs = verbs_of(Interface, "jobs-of-test")
    assert verbs["rename_job"].answer(Rows(), Rename(job_id=JOB)) == (3,)
    assert verbs["touch"].answer(Rows(), verbs["touch"].message(job_id=JOB, seconds=2.5)) is None


def test_a_reply_of_another_form_is_one_of_another_version() -> None:
    remote, _ = calls(["3"])
    with pytest.raises(CoordinatorError, match="the same version of the provider"):
        remote.rename_job(Rename(job_id=JOB))


class Meeting:
    """Credentials of eight threads that call at the same time."""

    def __init__(self, error: StateCheckError | None = None) -> None:
        self.barrier = threading.Barrier(8)
        self.obtained = 0
        self.error = error

    def obtain(self) -> str:
        self.obtained += 1
        # The others arrive while this one waits for the reply.
        threading.Event().wait(0.5)
        if self.error is not None:
            raise self.error
        return f"token {self.obtained}"

    def call(self, remote: Any) -> object:
        self.barrier.wait()
        try:
            return remote.rename_job(Rename(job_id=JOB))
        except StateCheckError as error:
            return error


def test_threads_wait_together_for_one_token() -> None:
    client: Any = Answering([3])
    meeting = Meeting()
    remote = HttpCalls(verbs_of(Interface, "jobs-of-test"), client, meeting)
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(meeting.call, [remote] * 8)) == [(3,)] * 8
    assert (meeting.obtained, {token for *_, token in client.sent}) == (1, {"token 1"})


def test_threads_wait_together_and_not_in_turn_for_a_server_that_does_not_answer() -> None:
    silent = CoordinatorUnavailableError("found no server")
    meeting = Meeting(silent)
    remote = HttpCalls(verbs_of(Interface, "jobs-of-test"), Answering([3]), meeting)  # type: ignore[arg-type]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(meeting.call, [remote] * 8)) == [silent] * 8
    assert meeting.obtained == 1
    meeting.error = None
    assert remote.rename_job(Rename(job_id=JOB)) == (3,), "the next call tries again"


def test_an_expired_token_is_replaced_once_for_all_threads() -> None:
    client: Any = Expiring()
    meeting = Meeting()
    remote = HttpCalls(verbs_of(Interface, "jobs-of-test"), client, meeting)
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(meeting.call, [remote] * 8)) == [(3,)] * 8
    assert meeting.obtained == 2


class Expiring(Answering):
    """A client that knows only the second token."""

    def __init__(self) -> None:
        super().__init__([3])

    def post(self, path: str, body: Any, token: str | None = None) -> Any:
        if token != "token 2":
            raise TokenExpiredError("expired")
        return super().post(path, body, token)


def test_a_call_without_an_argument_is_not_sent() -> None:
    remote, client = calls(None)
    with pytest.raises(TypeError, match="seconds"):
        remote.touch(JOB)
    assert client.sent == []


@pytest.mark.parametrize("name", ["renamed", "_touch", "__deepcopy__"])
def test_what_is_no_method_of_the_interface_is_no_call(name: str) -> None:
    assert not hasattr(calls(None)[0], name)


@pytest.mark.parametrize(
    ("name", "arguments", "address"),
    [
        ("jobs", {}, "jobs"),
        ("describe", {"job_id": "../a b"}, "jobs/..%2Fa%20b"),
        ("checkpoint", {"job_id": JOB, "checkpoint_id": 3}, f"jobs/{JOB}/checkpoints/3"),
        ("latest", {"job_id": JOB, "operator_id": "o/o"}, f"jobs/{JOB}/operators/o%2Fo/latest"),
        ("latest_checkpoints", {"job_id": JOB, "known_version": None}, f"jobs/{JOB}/latest"),
        (
            "latest_checkpoints",
            {"job_id": JOB, "known_version": VERSION},
            f"jobs/{JOB}/latest?known_version=57&seen_at=2026-01-01T00%3A00%3A00%2B00%3A00",
        ),
        ("checkpoints", {"job_id": JOB, "page": CheckpointPage(limit=5)}, f"jobs/{JOB}/checkpoints?limit=5"),
        (
            "checkpoints",
            {
                "job_id": JOB,
                "page": CheckpointPage(
                    before=9, limit=5, operator_id=OperatorId("o"), status=CheckpointStatus.COMPLETED
                ),
            },
            f"jobs/{JOB}/checkpoints?before=9&limit=5&operator_id=o&status=completed",
        ),
    ],
)
def test_the_address_of_a_read_holds_its_arguments(name: str, arguments: dict[str, Any], address: str) -> None:
    assert STAGE_CALLS[name].address(**arguments) == address


class Interrupted:
    """Credentials whose first answer is an interrupt, after which another thread waits for it."""

    def __init__(self, interrupt: Callable[[], object]) -> None:
        self.begun, self.obtained = threading.Event(), 0
        self._interrupt = interrupt

    def obtain(self) -> str:
        self.obtained += 1
        if self.obtained == 1:
            self.begun.set()
            threading.Event().wait(0.2)
            self._interrupt()
        return f"token {self.obtained}"


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_an_interrupt_of_the_thread_that_obtains_a_token_is_no_error_of_the_others() -> None:
    credentials = Interrupted(_interrupt)
    remote = HttpCalls(verbs_of(Interface, "jobs-of-test"), Answering([3]), credentials)  # type: ignore[arg-type]
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(remote.rename_job, Rename(job_id=JOB))
        assert credentials.begun.wait(30)
        second = threads.submit(remote.rename_job, Rename(job_id=JOB))
        with pytest.raises(KeyboardInterrupt):
            first.result(30)
        assert second.result(30) == (3,)
    assert credentials.obtained == 2
    assert remote.rename_job(Rename(job_id=JOB)) == (3,)


def test_a_call_of_a_signal_handler_does_not_wait_for_its_own_thread() -> None:
    replies: list[object] = []
    credentials = Interrupted(lambda: replies.append(remote.rename_job(Rename(job_id=JOB))))
    remote = HttpCalls(verbs_of(Interface, "jobs-of-test"), Answering([3]), credentials)  # type: ignore[arg-type]
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(remote.rename_job, Rename(job_id=JOB)).result(30) == (3,)
    assert replies == [(3,)]
