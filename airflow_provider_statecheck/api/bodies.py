"""
How a message gets from the network to its route.

The order matters, for anyone may send: the size is checked while the body arrives, the token before anything of the
message is read, and the message is parsed in a thread, where it holds up no other request.
"""

from __future__ import annotations

import email.message
import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import override

from airflow_provider_statecheck.api.access import check_token, checked_token
from airflow_provider_statecheck.api.errors import refusal
from airflow_provider_statecheck.api.limits import require_storable
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.gateway.wire import MalformedMessageError, decode

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
