"""Rendering of pages: templates, readable values, security policy and error pages."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from airflow_provider_statecheck.api.pages.addresses import Addresses
from airflow_provider_statecheck.api.requests import public_text, status_of
from airflow_provider_statecheck.checkpoint.config_options import readable_size
from airflow_provider_statecheck.exceptions import AccessDeniedError, CheckpointNotFoundError, StateCheckError
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.storage.uris import redact

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'self'",
    )
)
"""Content security policy of a page: nothing inline and nothing of another host."""

_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
_NOT_FOUND = "There is no such page, or you may not read every Dag that works on the job."


def render(request: Request, template: str, *, status_code: int = 200, **values: Any) -> HTMLResponse:
    """
    Return a page.

    The templates escape all values, because names, reasons and messages come from users.

    :param request: Request whose path the links of the page start with.
    """
    page = _environment().get_template(template).render(to=Addresses.of(request), **values)
    return HTMLResponse(page, status_code=status_code, headers={"Content-Security-Policy": POLICY})


class PageRoute(APIRoute):
    """
    A route that replies to errors with a page.

    A job that the user may not read is not found, so that the reply does not show whether it exists.
    """

    @override
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of FastAPI with pages for errors."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except HTTPException as refusal:
                return _error_page(request, refusal.status_code, str(refusal.detail))
            except (AccessDeniedError, CheckpointNotFoundError):
                return _error_page(request, 404, _NOT_FOUND)
            except RequestValidationError:
                return _error_page(request, 404, _NOT_FOUND)
            except StateCheckError as error:
                return _error_page(request, status_of(error), public_text(error))

        return handled


_TITLES = {401: "Log in to Airflow", 403: "Log in to Airflow", 404: "Not found"}


def _error_page(request: Request, status: int, text: str) -> Response:
    title = _TITLES.get(status, "This page cannot be shown")
    return render(request, "error.html", status_code=status, title=title, text=text, needs_login=status in (401, 403))


class PageFiles(StaticFiles):
    """Style sheet, scripts and icons of the pages. They contain nothing secret, so they need no login."""

    def __init__(self) -> None:
        super().__init__(packages=[(__package__, "static")])

    @override
    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file, which a browser may keep and must revalidate."""
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        return response


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"size": readable_size, "duration": readable_duration, "exact": exact_time, "redact": redact}
    environment.filters["json_text"] = partial(json.dumps, indent=2, ensure_ascii=False)
    environment.globals |= {"ago": relative_time}
    return environment


def readable_duration(value: timedelta | float) -> str:
    """
    Format a duration with its two largest units, such as ``3 min 5 s``.

    :param value: Duration, as a number in seconds.
    """
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s" if seconds >= 0.1 or seconds <= 0 else f"{seconds * 1000:.0f} ms"
    rest, parts = round(seconds), list[str]()
    for unit, length in _UNITS:
        count, rest = divmod(rest, length)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
    return " ".join(part for part in parts[:2] if part)


def relative_time(moment: datetime, now: datetime) -> str:
    """Format a time relative to another, with one unit, such as ``3 min ago``."""
    seconds = (now - moment).total_seconds()
    if abs(seconds) < 1:
        return "now"
    unit, length = next((unit for unit in _UNITS if abs(seconds) >= unit[1]), _UNITS[-1])
    text = f"{int(abs(seconds) // length)} {unit}"
    return f"{text} ago" if seconds > 0 else f"in {text}"


def exact_time(moment: datetime) -> str:
    """Format a time in UTC to the second."""
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
