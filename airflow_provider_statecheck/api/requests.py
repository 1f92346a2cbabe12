"""
Requests and replies: bodies and their limits, errors, and security headers.

The order matters, for anyone may send: the size is checked while the body arrives, the token before anything of the
message is read, and the message is parsed in a thread, where it holds up no other request.

The limits are those of the columns that keep the values. A message's field has the limit of the column of its name, or of
the one that ``_KEPT_AS`` names.
"""

from __future__ import annotations

import base64
import email.message
import hashlib
import json
import logging
import math
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from sqlalchemy import BigInteger, Integer, String
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeEngine
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import override

from airflow_provider_statecheck.api.access import check_token, checked_token
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
from airflow_provider_statecheck.gateway.protocol import encode_error
from airflow_provider_statecheck.gateway.wire import MalformedMessageError, decode, field_path
from airflow_provider_statecheck.metadata.models import Base, Checkpoint, Job, Operator

_Path = tuple[str | int, ...]
_Kind = TypeEngine[Any] | None

# PostgreSQL keeps no U+0000 and nothing keeps half a surrogate pair; JSON can say both.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_COORDINATE = String(250)
"""What Airflow keeps of the id of a Dag, a run or a task."""
_KEPT_AS: dict[str, _Kind] = {
    "job_name": Job.name.type,
    "former_uids": Operator.uid.type,
    "serves": Checkpoint.request_key.type,
    "trigger_key": Checkpoint.request_key.type,
    "newest_on_storage": Checkpoint.checkpoint_id.type,
    "checkpoint_ids": Checkpoint.checkpoint_id.type,
    "before": Checkpoint.checkpoint_id.type,
    "limit": Integer(),
    "dag_id": _COORDINATE,
    "run_id": _COORDINATE,
    "task_id": _COORDINATE,
    "map_index": Integer(),
}


async def refuse_unstorable(request: Request) -> None:
    """
    Look through the path and the query of a request.

    :raises InvalidConfigurationError: for a value that not every database can keep; it names the value.
    """
    for name, value in (*request.path_params.items(), *request.query_params.items()):
        kind = _columns().get(name)
        _require(_number(value) if isinstance(kind, Integer) else value, (name,), kind)


def _number(text: Any) -> Any:
    try:
        return int(text)
    except ValueError:
        return text  # which FastAPI refuses


def require_storable(message: Any) -> None:
    """
    Look through a message.

    :raises InvalidConfigurationError: for the first value that not every database can keep; it names the field.
    """
    _require(message, (), None)


def _require(value: Any, path: _Path, kind: _Kind) -> None:
    for place, inner, its_kind in _inner(value, kind):
        _require(inner, (*path, place), its_kind)
    expected = _expected(value, kind)
    if expected:
        raise InvalidConfigurationError(f"Expected {_shown(path)} to be {expected}, found another value.")


def _inner(value: Any, kind: _Kind) -> Iterator[tuple[str | int, Any, _Kind]]:
    if is_dataclass(value):
        for field in fields(value):
            yield field.name, getattr(value, field.name), _columns().get(field.name)
    elif isinstance(value, tuple):
        yield from ((place, each, kind) for place, each in enumerate(value))
    elif isinstance(value, Mapping):
        # What is in a mapping is kept as JSON, whatever the caller's keys are.
        for key, each in value.items():
            yield from (("a key", key, None), (key, each, None))


@cache
def _columns() -> Mapping[str, _Kind]:
    columns = (column for table in Base.metadata.sorted_tables for column in table.columns)
    return {**{column.name: column.type for column in columns}, **_KEPT_AS}


def _expected(value: Any, kind: _Kind) -> str | None:
    if isinstance(value, str):
        return _expected_text(value, kind.length if isinstance(kind, String) else None)
    if isinstance(value, float) and not math.isfinite(value):
        return "a finite number"
    if isinstance(value, int):
        bits = 32 if isinstance(kind, Integer) and not isinstance(kind, BigInteger) else 64
        return None if -(2 ** (bits - 1)) <= value < 2 ** (bits - 1) else f"a whole number of {bits} bits"
    return None


def _expected_text(value: str, longest: int | None) -> str | None:
    if _UNSTORABLE.search(value):
        return "a text without U+0000 and half surrogate pairs"
    return f"a text of at most {longest} characters" if longest is not None and len(value) > longest else None


def _shown(path: _Path) -> str:
    return field_path(path).encode("ascii", "backslashreplace").decode()[:200]


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
    found = "; ".join(f"{'.'.join(map(_errors_shown, each['loc']))}: {each['msg']}" for each in error.errors())
    return refusal(422, f"Expected a message of this version of the API, found {found}.")


def refusal(status: int, text: str) -> JSONResponse:
    """Return the reply to a request that no route takes, in the form of every other error."""
    return JSONResponse(encode_error(InvalidConfigurationError(text)), status_code=status)


def _errors_shown(place: str | int) -> str:
    # The caller chose the keys of a mapping; half a surrogate pair would make a reply that cannot be sent.
    return str(place).encode("ascii", "backslashreplace").decode()[:100]


MAX_BODY_BYTES = 1 << 20
MAX_BODY_BYTES_WITHOUT_TOKEN = 16 << 10
"""Enough to ask for a token with."""

Answer = Callable[[Request], Coroutine[Any, Any, Response]]


class _BodyTooLargeError(Exception):
    """More of a body arrived than is taken."""


class BodyLimit:
    """
    ASGI middleware that stops reading a body which is too large, whether its length was announced or not.

    :param app: What answers the requests.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and answer it here when its body turns out to be too large."""
        if _announced_bytes(scope) > MAX_BODY_BYTES:
            await _too_large(MAX_BODY_BYTES)(scope, receive, send)
            return
        try:
            await self._app(scope, _limited(receive), send)
        except _BodyTooLargeError:
            await _too_large(MAX_BODY_BYTES)(scope, receive, send)


def _announced_bytes(scope: Scope) -> int:
    announced = dict(scope.get("headers", ())).get(b"content-length", b"")
    return int(announced) if announced.isdigit() else 0


def _limited(receive: Receive) -> Receive:
    received = 0

    async def limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > MAX_BODY_BYTES:
            raise _BodyTooLargeError
        return message

    return limited


def _too_large(limit: int) -> Response:
    # The connection is of no more use: the rest of the body would have to be read first.
    reply = refusal(413, f"Expected a message of at most {limit} bytes, found more; send less in one message.")
    reply.headers["Connection"] = "close"
    return reply


class _ReadRequest(Request):
    """A request whose message was read before FastAPI asks for it."""

    message: Any = None

    @override
    async def json(self) -> Any:
        """Return the message, which is one of its class already."""
        return self.message


class MessageRoute(APIRoute):
    """A route that checks the token first, where it wants one, and then reads its message with the codec of the clients."""

    @override
    def get_route_handler(self) -> Answer:
        """Return what answers a request."""
        answer, wants_token = super().get_route_handler(), _depends_on(self.dependant, checked_token)
        limit = MAX_BODY_BYTES if wants_token else MAX_BODY_BYTES_WITHOUT_TOKEN

        async def checked(request: Request) -> Response:
            read = _ReadRequest(request.scope, request.receive)
            if wants_token:
                await check_token(read)
            refused = await self._read(read, limit) if self.body_field else None
            return refused or await answer(read)

        return checked

    async def _read(self, request: _ReadRequest, limit: int) -> Response | None:
        body = await request.body()
        if len(body) > limit:
            return _too_large(limit)
        if not body:
            return None  # FastAPI says that the message is missing
        if not _is_json(request):
            expected = "a message with the header Content-Type: application/json and without Content-Encoding"
            return refusal(415, f"Expected {expected}, found another one.")
        kind = self.dependant.body_params[0].field_info.annotation
        request.message = await run_in_threadpool(_message, kind, body)
        return None


def _depends_on(dependant: Dependant, dependency: Callable[..., Any]) -> bool:
    return any(each.call is dependency or _depends_on(each, dependency) for each in dependant.dependencies)


def _is_json(request: Request) -> bool:
    header = email.message.Message()
    header["content-type"] = request.headers.get("content-type", "")
    is_plain = request.headers.get("content-encoding", "identity").lower() == "identity"
    return is_plain and header.get_content_type() == "application/json"


def _message(kind: Any, body: bytes) -> Any:
    try:
        message = decode(kind, json.loads(body))
    except MalformedMessageError as error:
        found = {"type": "message", "loc": ("body", *error.path), "msg": f"Expected {error.expected}"}
        raise RequestValidationError([found]) from None
    except (ValueError, RecursionError):
        # Not the parser's own text: it may quote what was sent.
        raise InvalidConfigurationError(
            "Expected a message in JSON, found a body that is not, or is nested too deeply."
        ) from None
    require_storable(message)
    return message


_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
"""Airflow shows pages of plugins in frames of its own origin."""
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Frame-Options": "SAMEORIGIN",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_STYLE = re.compile("<style>(.*?)</style>", re.DOTALL)


class SecurityHeaders:
    """
    ASGI middleware that adds headers to every reply, unless its route said otherwise.

    :param app: What answers the requests.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and its reply back."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)


def page_policy(page: str) -> str:
    """
    Return the content security policy of a page, which allows the page's own style sheet by its hash.

    :param page: The page, whose first style sheet is the package's own.
    """
    style = _STYLE.search(page)
    if style is None:
        return _POLICY
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    return f"{_POLICY}; style-src 'sha256-{digest}'"
