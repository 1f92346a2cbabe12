"""
Requests and replies: limits, message parsing, errors and security headers.

Any client may send requests. The size of a body is therefore checked while it arrives, and the token before the message
is parsed. Parsing runs in a thread, so it does not block other requests.

Values of messages must fit the columns that store them. A field has the limit of the column with its name, or of the
one that ``STORED_AS`` names.
"""

from __future__ import annotations

import email.message
import json
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from sqlalchemy.exc import DBAPIError
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from airflow_provider_statecheck.api.checked_rows import Checked
from airflow_provider_statecheck.api.state_reads import retry_after
from airflow_provider_statecheck.checkpoint.codec import MalformedMessageError, decode, field_path
from airflow_provider_statecheck.checkpoint.masking import masked
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, RequestLimitError, StateCheckError
from airflow_provider_statecheck.gateway.verbs import MAX_ALIGNED_BODY_BYTES, MAX_BODY_BYTES, encode_error
from airflow_provider_statecheck.metadata.record_rows import LONGEST_TEXT, expected_number, expected_text
from airflow_provider_statecheck.metadata.tables import SMALL_NUMBERS, TEXT_LENGTHS
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.storage.stored_json import require_bounds, require_flat

log = logging.getLogger(__name__)

MAX_BODY_BYTES_WITHOUT_TOKEN = 16 << 10
"""Limit of routes without a token, which only take requests for tokens."""

_BYTES_PER_VALUE = 16
"""Size of a limit for each value that a message may have; checks take microseconds for a value, however small it is."""

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class _BodyTooLargeError(Exception):
    """A body exceeds the limit."""


class BodyLimit:
    """ASGI middleware that rejects bodies above the limit, with or without a Content-Length header."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, and reply with status 413 if its body exceeds the limit."""
        limit = _limit_of(scope)
        if _announced_bytes(scope) > limit:
            await _too_large(scope, limit)(scope, receive, send)
            return
        try:
            await self._app(scope, _limited(receive, limit), send)
        except _BodyTooLargeError:
            await _too_large(scope, limit)(scope, receive, send)


def _limit_of(scope: Scope) -> int:
    return MAX_ALIGNED_BODY_BYTES if _PATH_OF_ALIGNED.search(scope.get("path", "")) else MAX_BODY_BYTES


def _announced_bytes(scope: Scope) -> int:
    announced = dict(scope.get("headers", ())).get(b"content-length", b"")
    # int() refuses thousands of digits; the first 20 are above any limit.
    return int(announced[:20]) if announced.isdigit() else 0


def _limited(receive: Receive, limit: int) -> Receive:
    received = 0

    async def limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise _BodyTooLargeError
        return message

    return limited


_PATH_OF_ALIGNED = re.compile("/aligned/[^/]+$")
_PATH_OF_STATE = re.compile("/jobs/[^/]+/state(/|$)")


def _too_large(scope: Scope, limit: int) -> Response:
    kind = RequestLimitError if _PATH_OF_STATE.search(scope["path"]) else InvalidConfigurationError
    text = f"Expected a message of at most {limit} bytes, found a larger one; send a smaller message."
    reply = JSONResponse(encode_error(kind(text)), status_code=413)
    # Reusing the connection would require reading the rest of the body.
    reply.headers["Connection"] = "close"
    return reply


class _ParsedRequest(Request):
    """A request whose message was parsed before FastAPI reads it."""

    message: Any = None

    @override
    async def json(self) -> Any:
        """Return the parsed message instead of JSON."""
        return self.message


class MessageRoute(APIRoute):
    """
    A route that first checks the caller, if it depends on it, and then parses the message with the clients' codec.
    """

    @override
    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()
        check = next(_checks_of(self.dependant), None)

        async def checked(request: Request) -> Response:
            parsed = _ParsedRequest(request.scope, request.receive)
            if check is not None:
                parsed.state.checked = await check(parsed)
            limit = MAX_BODY_BYTES_WITHOUT_TOKEN if check is None else _limit_of(request.scope)
            rejected = await self._parse(parsed, limit) if self.body_field else None
            return rejected or await handle(parsed)

        return checked

    async def _parse(self, request: _ParsedRequest, limit: int) -> Response | None:
        body = await request.body()
        if len(body) > limit:
            return _too_large(request.scope, limit)
        if not body:
            return None  # FastAPI reports the missing message
        if not _is_json(request):
            expected = "a message with the header Content-Type: application/json and without Content-Encoding"
            return rejection(415, f"Expected {expected}, found other headers; correct them.")
        kind = self.dependant.body_params[0].field_info.annotation
        request.message = await run_in_threadpool(parse_message, kind, body, limit // _BYTES_PER_VALUE)
        return None


def _checks_of(dependant: Dependant) -> Iterator[Callable[[Request], Awaitable[Any]]]:
    for each in dependant.dependencies:
        if isinstance(each.call, Checked):
            yield each.call.check
        yield from _checks_of(each)


def _is_json(request: Request) -> bool:
    header = email.message.Message()
    header["content-type"] = request.headers.get("content-type", "")
    is_plain = request.headers.get("content-encoding", "identity").lower() == "identity"
    return is_plain and header.get_content_type() == "application/json"


def parse_message(kind: Any, body: bytes, most_values: int) -> Any:
    """
    Parse a message in JSON with the clients' codec.

    :param most_values: Number of values in the message at most.
    :raises InvalidConfigurationError: if the body is no JSON, is nested too deeply or has too many values.
    :raises RequestValidationError: if it is not a message of this kind.
    """
    try:
        require_bounds(body, most_values=most_values)
        require_flat(body)
        message = decode(kind, json.loads(body))
    except MalformedMessageError as error:
        details = {"type": "message", "loc": ("body", *error.path), "msg": f"Expected {error.expected}"}
        raise RequestValidationError([details]) from None
    except (ValueError, RecursionError):
        # The parser's own text may quote a secret in the body.
        raise InvalidConfigurationError(
            "Expected a message in JSON, found a body that is not JSON, is nested too deeply or has too many values; "
            "send valid JSON."
        ) from None
    require_storable(message)
    return message


_CODES = {
    400: ("invalid_configuration", "unsupported_state", "invalid_pointer"),
    401: ("token_expired",),
    403: ("access_denied",),
    404: (
        *("checkpoint_not_found", "handle_not_found", "unknown_state", "unknown_location", "unknown_kv_state_location"),
        *("unknown_kv_state_key_group_location", "unknown_key_or_namespace"),
    ),
    409: (
        *("stale_attempt", "concurrent_attempt", "run_superseded", "incompatible_checkpoint", "unknown_version"),
        *("no_restorable_checkpoint", "open_commit", "handle_exists", "resource_version"),
    ),
    413: ("request_limit",),
    500: ("corrupt_state", "corrupt_row"),
    503: (
        *("environment_not_ready", "storage", "unknown_kv_state_id"),
        *("coordinator_unavailable", "commit_state_unknown"),
    ),
}
"""Codes of errors by the status of the reply; a code that is not here has the status of its base class, or 500."""
_STATUS = {code: status for status, codes in _CODES.items() for code in codes}


def checked_app(**options: Any) -> FastAPI:
    """
    Create an app that checks requests and adds security headers to replies.

    It replies to errors of this package with their code and message, from which the client raises the same error.

    :param options: Further options of FastAPI.
    """
    # A page route serves the description to logged-in users. FastAPI's own pages load scripts from other hosts.
    app = FastAPI(dependencies=[Depends(reject_unstorable_parameters)], openapi_url=None, **options)
    app.add_middleware(BodyLimit)
    app.add_middleware(SecurityHeaders)
    app.add_exception_handler(StateCheckError, _reply)
    app.add_exception_handler(RequestValidationError, _reply_to_malformed)
    return app


async def _reply(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StateCheckError)  # noqa: S101 - registered for this class alone
    headers = retry_after(error) if isinstance(error, RequestLimitError) else {}
    data = encode_error(error) | {"message": public_text(error)}
    return JSONResponse(data, status_code=429 if headers else status_of(error), headers=headers)


def status_of(error: StateCheckError) -> int:
    """Return the HTTP status of an error."""
    codes = (getattr(kind, "code", "") for kind in type(error).__mro__)
    return next((_STATUS[code] for code in codes if code in _STATUS), 500)


def public_text(error: StateCheckError) -> str:
    """Return the message of an error without details of the database."""
    # The driver's message names the host and the user of the database, and callers without a token get this reply too.
    cause = error.__cause__
    if not isinstance(cause, DBAPIError) or str(cause.orig) not in str(error):
        return masked(str(error))
    log.warning("%s", error)
    return masked(str(error).replace(str(cause.orig), "see the log of the api-server"))


async def _reply_to_malformed(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for this class alone
    # The reply names the fields but not their values: one may be a secret.
    details = "; ".join(f"{_field_name(each['loc'])}: {each['msg']}" for each in error.errors())
    return rejection(422, f"Expected a message of this version of the API, found {details}.")


def rejection(status: int, text: str) -> JSONResponse:
    """Return the reply to an invalid request, in the form of all errors."""
    return JSONResponse(encode_error(InvalidConfigurationError(text)), status_code=status)


def _field_name(path: Sequence[str | int]) -> str:
    # The caller chooses the keys of a mapping; a lone surrogate in one of them cannot be sent in a reply.
    return field_path(tuple(path)).encode("ascii", "backslashreplace").decode()[:200]


_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
"""Content security policy of all replies; Airflow shows pages of plugins in frames of its own origin."""
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Frame-Options": "SAMEORIGIN",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class SecurityHeaders:
    """ASGI middleware that adds security headers to every reply, unless the route set them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, and add the headers to its reply."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)


_Path = tuple[str | int, ...]

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
STORED_AS = {
    **dict.fromkeys(("job_name", "former_uids", "member"), "name"),
    **dict.fromkeys(("serves", "trigger_key"), "request_key"),
    **dict.fromkeys(("coordinator", "abort_key", "end_key"), "finalizer"),
    **dict.fromkeys(("run_id", "task_id"), "dag_id"),
    "restarted_run": "run_key",
    "partition_date": "run_key",
    **dict.fromkeys(("limit", "map_index", "try_number"), "epoch"),
    "sha256": "metadata_sha256",
}
"""Columns with the limits of fields and parameters of other names."""
_NUMBERS = {"checkpoint_id", "before", "limit", "map_index"}
"""Parameters that are whole numbers."""
_NUMBER_OUT_OF_RANGE = 2**63
NEVER_STORED = {"key", "keys", "namespace", "user_key"}
"""Fields that are compared with keys of state; these may contain U+0000, unlike the columns of a database."""


async def reject_unstorable_parameters(request: Request) -> None:
    """
    Check the path and the query of a request.

    :raises InvalidConfigurationError: if a database cannot store a parameter; the error names it.
    """
    for name, value in (*request.path_params.items(), *request.query_params.items()):
        _require(_number(value) if name in _NUMBERS else value, (name,), name)


def _number(text: Any) -> Any:
    try:
        return int(text)
    except ValueError:
        # int() refuses thousands of digits; FastAPI rejects any other text.
        return _NUMBER_OUT_OF_RANGE if isinstance(text, str) and text.isdecimal() else text


def require_storable(message: Any) -> None:
    """
    Check the fields of a message.

    :raises InvalidConfigurationError: if a database cannot store a value; the error names its field.
    """
    _require(message, (), "")


def _require(value: Any, path: _Path, name: str) -> None:
    if not isinstance(value, str):
        for place, child, child_name in _children(value, name):
            _require(child, (*path, place), child_name)
    expected = _expected(value, name)
    if expected:
        raise InvalidConfigurationError(
            f"Expected {_field_name(path)} to be {expected}, found another value; correct it."
        )


def _children(value: Any, name: str) -> Iterator[tuple[str | int, Any, str]]:
    """Yield the values in a value, each with its place and the name of the field that has it."""
    if is_dataclass(value):
        yield from ((field.name, getattr(value, field.name), field.name) for field in fields(value))
    elif isinstance(value, tuple | list):
        yield from ((place, each, name) for place, each in enumerate(value))
    elif isinstance(value, Mapping):
        # Mappings are stored as JSON; their keys do not refer to columns.
        of_entry = name if name in NEVER_STORED else ""
        for key, each in value.items():
            yield from (("a key", key, of_entry), (key, each, of_entry))


def _expected(value: Any, name: str) -> str | None:
    column = STORED_AS.get(name, name)
    if isinstance(value, str):
        if name in NEVER_STORED:
            return "text without lone surrogates" if _LONE_SURROGATE.search(value) else None
        return expected_text(value, TEXT_LENGTHS.get(column, LONGEST_TEXT))
    if isinstance(value, int | float):
        return expected_number(value, 32 if column in SMALL_NUMBERS else 64)
    return None
