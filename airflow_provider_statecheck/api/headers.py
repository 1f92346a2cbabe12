"""What a browser is told to do with a reply: show it, below Airflow's own pages or alone, and load nothing else."""

from __future__ import annotations

import base64
import hashlib
import re

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
