"""
Classification and retries of storage errors.

Errors are classified by HTTP status, by the server's error code, or by class name. The clients of the object stores are
therefore not imported.
"""

from __future__ import annotations

import errno
import logging
import random
import re
import ssl
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, TypeVar

from airflow_provider_statecheck.exceptions import StorageError, shown_errors

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504, 509})
_TRANSIENT_CODES = frozenset(
    {
        "SlowDown",
        "InternalError",
        "ServiceUnavailable",
        "RequestTimeout",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "TooManyRequestsException",
        "RequestLimitExceeded",
        "BandwidthLimitExceeded",
        "OperationAborted",
        "ConditionalRequestConflict",
        "IncompleteBody",
        "BadDigest",
        "XAmzContentSHA256Mismatch",
        "ServerBusy",
        "OperationTimedOut",
        "NetworkConnection",  # the AWS SDK of PyArrow
        "InternalFailure",
        "Unavailable",  # Google's client of PyArrow
        "DeadlineExceeded",
        "ResourceExhausted",
    }
)
# Python has classes of its own for the errors of broken connections and time-outs.
_TRANSIENT_ERRNO = frozenset({errno.EAGAIN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETRESET, errno.ENETUNREACH})
_TRANSIENT_CLASSES = frozenset(
    {
        "HTTPClientError",  # botocore: time-outs and broken connections
        "IncompleteReadError",
        "ResponseParserError",
        "ResponseStreamingError",
        "ClientConnectionError",  # aiohttp
        "ClientPayloadError",
        "IncompleteRead",  # http.client
        "ServiceRequestError",  # azure.core
        "ServiceResponseError",
        "ChecksumError",  # gcsfs
        "ConnectionError",  # Python and requests
        "ChunkedEncodingError",  # requests; its other errors are OSErrors without an errno
        "ProxyError",
        "Timeout",
    }
)
_NO_BUCKET_CODES = frozenset({"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted"})
_DENIED_CODES = frozenset(
    {
        "AccessDenied",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "InvalidToken",
        "AllAccessDisabled",
        "PermissionDenied",  # Google's client of PyArrow
        "Unauthenticated",
    }
)
_NO_CREDENTIALS_CLASSES = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "DefaultCredentialsError"}
)
_WRONG_REGION_CODES = frozenset(
    {"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"}
)
_CODE_OF_STATUS: Mapping[str | None, str] = {"301": "PermanentRedirect"}
"""Codes of answers without a body, by status."""
_FULL_ERRNO = frozenset({errno.ENOSPC, errno.EDQUOT})
_SAID_BY_ARROW = re.compile(
    r"AWS Error (?:UNKNOWN|(?P<aws>[A-Z_]+))(?: \(HTTP status (?P<status>\d{3})\))?"
    r"(?:.*Unable to parse ExceptionName: (?P<unknown>\w+))?"
    r"|google::cloud::Status\((?P<google>[A-Z_]+)|Azure Error: \[(?P<azure>\w+)\]",
    re.DOTALL,
)
"""The code and the status in an error of PyArrow, whose only fact is its text."""
_HANDLED: ContextVar[BaseException | None] = ContextVar("_HANDLED", default=None)


@contextmanager
def judged_alone() -> Iterator[None]:
    """
    Classify storage errors without the error that is being handled.

    Errors raised in an ``except`` block have the handled error as context. A broken connection to a JVM, for example,
    would make a missing file look transient.
    """
    token = _HANDLED.set(sys.exception())
    try:
        yield
    finally:
        _HANDLED.reset(token)


def is_transient(error: BaseException) -> bool:
    """Return true if a retry of the call may succeed."""
    if _is_permanent(error):
        return False
    return any(
        _status(link) in _TRANSIENT_STATUS or _code(link) in _TRANSIENT_CODES or _is_broken_connection(link)
        for link in _chain(error)
    )


def is_missing_bucket(error: BaseException) -> bool:
    """Return true if the bucket is missing, as opposed to a file in it."""
    return any(_code(link) in _NO_BUCKET_CODES for link in _chain(error))


def is_taken(error: BaseException) -> bool:
    """Return true if a write was rejected because the name exists."""
    return any(isinstance(link, FileExistsError) or _status(link) == 412 for link in _chain(error))


def is_unsupported(error: BaseException) -> bool:
    """Return true if the store does not support the operation, such as a conditional write."""
    return any(_status(link) == 501 or _code(link) == "NotImplemented" for link in _chain(error))


def is_refused(error: BaseException) -> bool:
    """Return true if the storage refused the credentials, or if there were none."""
    links = list(_chain(error))
    return any(map(_is_denied, links)) or bool(_names(links) & _NO_CREDENTIALS_CLASSES)


def disk_failure(error: BaseException) -> OSError | None:
    """
    Return the cause of an error that is a full or read-only disk, or a quota.

    A repetition at once meets it again.
    """
    codes = {*_FULL_ERRNO, errno.EROFS}
    return next((link for link in _chain(error) if isinstance(link, OSError) and link.errno in codes), None)


def advice(error: BaseException) -> str:
    """Return a sentence with the remedy, after a space, or an empty string."""
    links = list(_chain(error))
    if any(isinstance(link, OSError) and link.errno in _FULL_ERRNO for link in links):
        return " There is no space left; free some space, or raise the quota."
    if any(isinstance(link, OSError) and link.errno == errno.EROFS for link in links):
        return " The disk is read-only; make it writable, or choose another directory."
    if is_missing_bucket(error):
        return " The bucket does not exist; create it, or correct checkpoint_dir."
    if _names(links) & _NO_CREDENTIALS_CLASSES:
        return " No credentials were found; give them in the storage options or the connection."
    if any(_code(link) in _WRONG_REGION_CODES for link in links):
        return " Check the region and the endpoint of the bucket."
    if any(isinstance(link, ssl.SSLCertVerificationError) for link in links):
        return " Check the certificate of the endpoint."
    if any(_is_denied(link) for link in links):
        return " Check the credentials, and that they may read, write, list and delete there."
    return ""


@contextmanager
def local_failures(path: object) -> Iterator[None]:
    """
    Replace an error of the operating system at a local file or directory by one that names it.

    :raises StorageError: if the operating system refuses the call; a retry may succeed.
    """
    with judged_alone():
        try:
            yield
        except OSError as error:
            raise StorageError(f"The storage failed at {path}: {str(error).rstrip('.')}.{advice(error)}") from error


def repeated(
    action: Callable[[], Result],
    pauses_seconds: Iterable[float],
    is_passing: Callable[[Exception, float], bool],
    sleep: Callable[[float], None],
) -> Result:
    """
    Call a function, and call it again after each pause while it raises an error that may pass.

    :param pauses_seconds: Pauses in seconds; their number is the number of repetitions.
    :param is_passing: Function that takes an error and the pause to come, logs it, and returns whether to repeat.
    :raises Exception: if the last error does not pass, or the pauses are used up; this is that error.
    """
    for pause in pauses_seconds:
        try:
            return action()
        except Exception as error:
            if not is_passing(error, pause):
                raise
        sleep(pause)
    return action()


def _jitter() -> float:
    # The pickle of random.random contains the state of the generator, and all tasks would retry at the same times.
    return random.random()  # noqa: S311 - not a secret


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """
    Exponential backoff with jitter, within bounds.

    Clients of object stores retry some requests themselves. This policy retries the calls that they gave up or did not
    retry.
    """

    attempts: int = 5
    """Maximum number of attempts."""
    first_pause_seconds: float = 0.2
    """Upper bound of the first pause in seconds; the bound doubles after each attempt."""
    longest_pause_seconds: float = 10.0
    """Upper bound of each pause in seconds."""
    deadline_seconds: float = 120.0
    """Time in seconds after which no attempt starts; a single attempt may take minutes."""
    sleep: Callable[[float], None] = time.sleep
    monotonic: Callable[[], float] = time.monotonic
    random: Callable[[], float] = _jitter
    """Source of jitter from 0 (inclusive) to 1 (exclusive), which spreads the retries of concurrent clients."""

    @judged_alone()
    def call(self, action: Callable[[], Result], name: str) -> Result:
        """
        Call a function, and retry it after transient errors.

        :param name: Redacted URI for the log.
        :return: Result of the function.
        :raises Exception: if the last error is not transient, or the attempts or the deadline are exhausted.
        """
        started = self.monotonic()

        def is_passing(error: Exception, pause: float) -> bool:
            if not is_transient(error) or self.monotonic() - started + pause > self.deadline_seconds:
                return False
            # Only the class, because messages of clients may contain signed URLs.
            log.warning("Storage call on %s failed with %s; retrying in %.1f s", name, type(error).__name__, pause)
            return True

        return repeated(action, map(self.pause_after, range(1, self.attempts)), is_passing, self.sleep)

    def pause_after(self, number: int) -> float:
        """Return the pause in seconds after the attempt with this number, from 1."""
        longest = min(self.longest_pause_seconds, self.first_pause_seconds * 2.0 ** (number - 1))
        return longest * self.random()


def _is_permanent(error: BaseException) -> bool:
    return is_missing_bucket(error) or any(
        isinstance(link, FileExistsError | ssl.SSLCertVerificationError)
        or (isinstance(link, OSError) and link.errno in _FULL_ERRNO)
        or _is_denied(link)
        for link in _chain(error)
    )


def _is_broken_connection(error: BaseException) -> bool:
    if isinstance(error, TimeoutError) or (isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNO):
        return True
    return bool(_names([error]) & _TRANSIENT_CLASSES)


def _is_denied(error: BaseException) -> bool:
    if isinstance(error, PermissionError) or _code(error) in _DENIED_CODES or _status(error) in (401, 403):
        return True
    # gcsfs reports it only in the message.
    return isinstance(error, OSError) and str(error).startswith("Forbidden: ")


def _chain(error: BaseException) -> Iterator[BaseException]:
    return takewhile(lambda link: link is not _HANDLED.get(), shown_errors(error))


def _names(errors: list[BaseException]) -> set[str]:
    return {kind.__name__ for error in errors for kind in type(error).__mro__}


def _code(error: BaseException) -> str | None:
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        found = response.get("Error", {}).get("Code")
    else:
        found = getattr(error, "error_code", None) or _code_said_by_arrow(error)
    return None if found is None else str(getattr(found, "value", found))


def _said_by_arrow(error: BaseException) -> dict[str, str | None]:
    found = _SAID_BY_ARROW.search(str(error)) if type(error) is OSError else None
    return {} if found is None else found.groupdict()


def _code_said_by_arrow(error: BaseException) -> str | None:
    said = _said_by_arrow(error)
    words = said.get("aws") or said.get("google")
    if words:
        return "".join(word.capitalize() for word in words.split("_"))
    return said.get("unknown") or said.get("azure") or _CODE_OF_STATUS.get(said.get("status"))


def _status(error: BaseException) -> int | None:
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        return _as_status(response.get("ResponseMetadata", {}).get("HTTPStatusCode"))
    named = (getattr(error, name, None) for name in ("status_code", "status", "code"))
    candidates = [*named, getattr(response, "status_code", None), _said_by_arrow(error).get("status")]
    return next((status for status in map(_as_status, candidates) if status is not None), None)


def _as_status(value: Any) -> int | None:
    text = str(value)
    return int(text) if len(text) == 3 and text.isascii() and text.isdigit() else None
