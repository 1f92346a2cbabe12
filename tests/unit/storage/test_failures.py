from __future__ import annotations

import errno
import ssl
from typing import Any

import pytest

from airflow_provider_statecheck.storage.failures import (
    advice,
    is_missing_bucket,
    is_taken,
    is_transient,
    is_unsupported,
)


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
        ReadTimeoutError("x"),
        ConnectionResetError(),
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
