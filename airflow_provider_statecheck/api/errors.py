"""Errors as replies."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DBAPIError

from airflow_provider_statecheck.exceptions import (
    AccessDeniedError,
    CheckpointNotFoundError,
    CommitStateUnknownError,
    ConcurrentAttemptError,
    CoordinatorUnavailableError,
    EnvironmentNotReadyError,
    HandleExistsError,
    HandleNotFoundError,
    IncompatibleCheckpointError,
    InvalidConfigurationError,
    NoRestorableCheckpointError,
    OpenCommitError,
    ResourceVersionError,
    RunSupersededError,
    StaleAttemptError,
    StateCheckError,
    TokenExpiredError,
)
from airflow_provider_statecheck.gateway.errors import encode_error

log = logging.getLogger(__name__)

# The first class that fits decides.
_STATUS: tuple[tuple[type[StateCheckError], int], ...] = (
    (TokenExpiredError, 401),
    (AccessDeniedError, 403),
    (InvalidConfigurationError, 400),
    (CheckpointNotFoundError, 404),
    (HandleNotFoundError, 404),
    (StaleAttemptError, 409),
    (ConcurrentAttemptError, 409),
    (RunSupersededError, 409),
    (IncompatibleCheckpointError, 409),
    (NoRestorableCheckpointError, 409),
    (OpenCommitError, 409),
    (HandleExistsError, 409),
    (ResourceVersionError, 409),
    (EnvironmentNotReadyError, 503),
    (CoordinatorUnavailableError, 503),
    (CommitStateUnknownError, 503),
)
_OTHERWISE = 500


def install_error_replies(app: FastAPI) -> None:
    """Answer errors of this package with their code and text, so that the client can raise them again."""
    app.add_exception_handler(StateCheckError, _reply)
    app.add_exception_handler(RequestValidationError, _reply_to_malformed)


async def _reply(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StateCheckError)  # noqa: S101 - registered for this class alone
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), _OTHERWISE)
    return JSONResponse(encode_error(error) | {"message": _public_text(error)}, status_code=status)


def _public_text(error: StateCheckError) -> str:
    # A driver names the database's host and user; callers that have not yet shown a token get this reply too.
    cause = error.__cause__
    if not isinstance(cause, DBAPIError) or str(cause.orig) not in str(error):
        return str(error)
    log.warning("%s", error)
    return str(error).replace(str(cause.orig), "the api-server's log says more")


async def _reply_to_malformed(request: Request, error: Exception) -> JSONResponse:
    # Not the values that were sent: one of them may be a secret.
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for this class alone
    found = "; ".join(f"{'.'.join(map(_shown, each['loc']))}: {each['msg']}" for each in error.errors())
    return refusal(422, f"Expected a message of this version of the API, found {found}.")


def refusal(status: int, text: str) -> JSONResponse:
    """Return the reply to a request that no route takes, in the form of every other error."""
    return JSONResponse(encode_error(InvalidConfigurationError(text)), status_code=status)


def _shown(place: str | int) -> str:
    # The caller chose the keys of a mapping; half a surrogate pair would make a reply that cannot be sent.
    return str(place).encode("ascii", "backslashreplace").decode()[:100]
