"""Classification and retries of storage errors."""

from __future__ import annotations

import errno
import pickle
import ssl
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, StorageError
from airflow_provider_statecheck.storage.failures import (
    RetryPolicy,
    advice,
    is_missing_bucket,
    is_taken,
    is_transient,
    is_unsupported,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage


class ClientError(Exception):
    """As botocore has it."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}


class HttpError(Exception):
    """As gcsfs has it."""

    def __init__(self, code: int | str) -> None:
        super().__init__(str(code))
        self.code = code


class HttpResponseError(Exception):
    """As azure.core has it."""

    def __init__(self, status_code: int, error_code: str) -> None:
        super().__init__(error_code)
        self.status_code = status_code
        self.error_code = error_code


def _caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


class HTTPClientError(Exception):
    pass


class ReadTimeoutError(HTTPClientError):
    pass


class ConnectionFailedError(OSError):
    """As requests has it: no subclass of Python's error of the same name."""


ConnectionFailedError.__name__ = "ConnectionError"


@pytest.mark.parametrize(
    "error",
    [
        _caused(OSError(errno.EBUSY, "slow"), ClientError(503, "SlowDown")),
        _caused(OSError(errno.EIO, "odd"), ClientError(429, "429")),
        ClientError(400, "RequestTimeout"),
        ClientError(409, "ConditionalRequestConflict"),
        HttpError(500),
        HttpError("503"),
        HttpResponseError(503, "ServerBusy"),
        OSError(
            "When uploading object with key 'k' in bucket 'b': AWS Error SLOW_DOWN during PutObject operation: slow"
        ),
        OSError("AWS Error NETWORK_CONNECTION during GetObject operation: curlCode: 28, Timeout was reached"),
        OSError("AWS Error UNKNOWN (HTTP status 429) during HeadObject operation: No response body."),
        OSError("AWS Error INTERNAL_FAILURE during GetObject operation: Failed to flush response stream"),
        OSError("google::cloud::Status(UNAVAILABLE: Retry policy exhausted in GetObjectMetadata)"),
        OSError("GetProperties failed. Azure Error: [ServerBusy] 503 Egress is over the account limit."),
        ReadTimeoutError("x"),
        ConnectionResetError(),
        ConnectionFailedError("no route"),
        OSError(errno.ECONNREFUSED, "refused"),
        OSError(errno.EPIPE, "broken"),
        OSError(errno.ETIMEDOUT, "late"),
        TimeoutError(),
        OSError(errno.EHOSTUNREACH, "no way"),
        _caused(RuntimeError("wrapped"), BrokenPipeError()),
    ],
    ids=repr,
)
def test_what_passes_is_transient(error: Exception) -> None:
    assert is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        _caused(PermissionError("denied"), ClientError(403, "AccessDenied")),
        _caused(FileNotFoundError("gone"), ClientError(404, "NoSuchKey")),
        ClientError(404, "NoSuchBucket"),
        ClientError(400, "InvalidRequest"),
        ClientError(412, "PreconditionFailed"),
        HttpError(401),
        HttpResponseError(404, "ContainerNotFound"),
        OSError("When listing objects: AWS Error NO_SUCH_BUCKET during ListObjectsV2 operation: HTTP status 503"),
        OSError("AWS Error ACCESS_DENIED during HeadObject operation: No response body."),
        OSError("google::cloud::Status(PERMISSION_DENIED: Permanent error in GetObjectMetadata)"),
        ValueError("AWS Error SLOW_DOWN during PutObject operation: in a text of another error"),
        ValueError("odd"),
        OSError(errno.ENOSPC, "full"),
        OSError("without a number"),
        _caused(ReadTimeoutError("x"), ssl.SSLCertVerificationError("self-signed")),
    ],
    ids=repr,
)
def test_what_does_not_pass_is_not_transient(error: Exception) -> None:
    assert not is_transient(error)


def test_a_missing_file_is_no_missing_bucket() -> None:
    assert is_missing_bucket(_caused(FileNotFoundError("b"), ClientError(404, "NoSuchBucket")))
    assert is_missing_bucket(HttpResponseError(404, "ContainerNotFound"))
    assert not is_missing_bucket(_caused(FileNotFoundError("f"), ClientError(404, "NoSuchKey")))


def test_a_name_that_is_taken_is_known_with_and_without_words() -> None:
    assert is_taken(FileExistsError("f"))
    assert is_taken(_caused(OSError(errno.EINVAL, "x"), ClientError(412, "PreconditionFailed")))
    assert not is_taken(ClientError(409, "ConditionalRequestConflict"))


def test_a_store_without_conditions_is_known() -> None:
    assert is_unsupported(_caused(OSError(errno.ENOSYS, "x"), ClientError(501, "NotImplemented")))
    assert not is_unsupported(ClientError(500, "InternalError"))


class NoCredentialsError(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, "full"), "no space left"),
        (OSError(errno.EDQUOT, "full"), "no space left"),
        (ClientError(404, "NoSuchBucket"), "bucket does not exist"),
        (ClientError(403, "InvalidAccessKeyId"), "Check the credentials"),
        (OSError("Forbidden: https://x/y\nno"), "Check the credentials"),
        (NoCredentialsError("x"), "No credentials"),
        (ClientError(301, "PermanentRedirect"), "Check the region"),
        (OSError("AWS Error UNKNOWN (HTTP status 301) during HeadObject operation: No response body."), "the region"),
        (OSError("AWS Error ACCESS_DENIED during HeadObject operation: No response body."), "Check the credentials"),
        (OSError("AWS Error NO_SUCH_BUCKET during PutObject operation: gone"), "bucket does not exist"),
        (OSError("List failed. Azure Error: [ContainerNotFound] 404 No such container."), "bucket does not exist"),
        (ssl.SSLCertVerificationError("x"), "Check the certificate"),
        (ValueError("odd"), ""),
    ],
    ids=lambda value: repr(value) if isinstance(value, Exception) else "",
)
def test_advice_says_what_to_check(error: Any, expected: str) -> None:
    assert expected in advice(error)
    assert bool(advice(error)) == bool(expected)


def test_a_chain_that_bites_its_tail_ends() -> None:
    error = ValueError("x")
    error.__cause__ = error
    assert not is_transient(error)


class _Time:
    """A clock that only sleeping moves."""

    def __init__(self, seconds_per_call: float = 0) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self._seconds_per_call = seconds_per_call

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def policy(self, random: float = 0.5, **bounds: float) -> RetryPolicy:
        return RetryPolicy(sleep=self.sleep, monotonic=lambda: self.now, random=lambda: random, **bounds)  # type: ignore[arg-type]

    def failing(self, error: Exception, times: int):
        left = [error] * times

        def call() -> str:
            self.now += self._seconds_per_call
            if left:
                raise left.pop()
            return "done"

        return call


def test_what_passes_is_waited_out_longer_and_longer_with_jitter() -> None:
    time = _Time()
    assert time.policy().call(time.failing(ConnectionResetError(), 4), "x") == "done"
    assert time.pauses == [0.1, 0.2, 0.4, 0.8]


def test_no_pause_is_longer_than_its_bound() -> None:
    time = _Time()
    time.policy(random=1.0, attempts=9, longest_pause_seconds=1.0).call(time.failing(TimeoutError(), 8), "x")
    assert max(time.pauses) == 1.0


def test_after_the_last_attempt_the_error_itself_is_raised() -> None:
    time, error = _Time(), ConnectionResetError()
    with pytest.raises(ConnectionResetError) as caught:
        time.policy().call(time.failing(error, 5), "x")
    assert caught.value is error
    assert len(time.pauses) == 4


def test_no_attempt_begins_after_the_deadline() -> None:
    time = _Time(seconds_per_call=50)
    with pytest.raises(TimeoutError):
        time.policy(attempts=100, deadline_seconds=120).call(time.failing(TimeoutError(), 99), "x")
    assert len(time.pauses) == 2


@pytest.mark.parametrize(
    "error", [PermissionError("no"), FileNotFoundError("gone"), ValueError("odd"), OSError(28, "full")]
)
def test_what_does_not_pass_is_not_repeated(error: Exception) -> None:
    time = _Time()
    with pytest.raises(type(error)):
        time.policy().call(time.failing(error, 1), "x")
    assert time.pauses == []


def test_an_error_in_whose_handling_the_storage_is_called_is_none_of_its_own(tmp_path: Path) -> None:
    """
    A JVM that was killed breaks the driver's connection.

    A file that is missing then is missing, and no passing fault.
    """
    time = _Time()
    storage = CheckpointStorage(LocalFileSystem(), f"file://{tmp_path}", retries=time.policy())
    try:
        raise ConnectionRefusedError(111, "the JVM is dead")
    except ConnectionRefusedError:
        with pytest.raises(CheckpointNotFoundError):
            storage.read_bytes(f"file://{tmp_path}/chk-3/_metadata")
    assert time.pauses == []


def test_a_pickled_storage_keeps_its_policy(tmp_path: Path) -> None:
    policy = RetryPolicy(attempts=2, first_pause_seconds=0.0)
    storage = CheckpointStorage(LocalFileSystem(), tmp_path.as_uri(), retries=policy)
    calls: list[str] = []

    def fail(_: object, path: str) -> None:
        calls.append(path)
        raise ConnectionResetError("planned")

    with pytest.raises(StorageError):
        pickle.loads(pickle.dumps(storage)).call(f"{tmp_path.as_uri()}/file", fail)
    assert len(calls) == 2


def test_the_pauses_of_a_pickled_policy_are_its_own() -> None:
    """A pickled generator of random numbers would give all tasks the same pauses."""
    pickled = pickle.dumps(RetryPolicy())
    assert len({pickle.loads(pickled).pause_after(1) for _ in range(2)}) == 2


def test_log_names_the_place_and_not_what_the_client_said(caplog: pytest.LogCaptureFixture) -> None:
    time = _Time()
    time.policy().call(time.failing(TimeoutError("https://x/?sig=secret"), 1), "s3://bucket/f")
    assert "Storage call on s3://bucket/f failed with TimeoutError; retrying" in caplog.text
    assert "secret" not in caplog.text
