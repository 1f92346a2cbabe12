"""Rendering of pages: templates, readable values, addresses, security policy and error pages."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache, partial
from typing import Any, Self
from urllib.parse import quote, urlencode

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from airflow_provider_statecheck.api.pages.charts import UNITS, readable_duration
from airflow_provider_statecheck.api.pages.job_figures import OperatorsQuery
from airflow_provider_statecheck.api.requests import public_text, status_of
from airflow_provider_statecheck.checkpoint.config_options import readable_size
from airflow_provider_statecheck.checkpoint.job_list import JobsPage
from airflow_provider_statecheck.checkpoint.records import TaskCoordinates
from airflow_provider_statecheck.exceptions import (
    AccessDeniedError,
    CheckpointNotFoundError,
    CorruptRowError,
    StateCheckError,
)
from airflow_provider_statecheck.gateway.verbs import JOB_PAGES, MOUNT_PATH
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

    A job that the user may not read is not found, so that the reply does not show whether it exists. A job with a row
    that cannot be read has a page that shows the error, as the lists do.
    """

    @override
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
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
            except CorruptRowError as error:
                return _error_page(request, 200, public_text(error))
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


def relative_time(moment: datetime, now: datetime) -> str:
    """Format a time relative to another, with one unit, such as ``3 min ago``."""
    seconds = (now - moment).total_seconds()
    if abs(seconds) < 1:
        return "now"
    unit, length = next((unit for unit in UNITS if abs(seconds) >= unit[1]), UNITS[-1])
    text = f"{int(abs(seconds) // length)} {unit}"
    return f"{text} ago" if seconds > 0 else f"in {text}"


def exact_time(moment: datetime) -> str:
    """Format a time in UTC to the second."""
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True, slots=True)
class Addresses:
    """
    Addresses below the path of an api-server.

    :param airflow: Path of Airflow without a slash at its end; empty at the root of a host.
    """

    airflow: str

    @classmethod
    def of(cls, request: Request) -> Self:
        """Return the addresses for the links in the reply to a request."""
        mounted = str(request.scope.get("root_path", ""))
        return cls(mounted.removesuffix(MOUNT_PATH))

    def static(self, name: str) -> str:
        """Return the address of a static file."""
        return f"{self.airflow}{MOUNT_PATH}/static/{name}"

    def jobs(self, **query: object) -> str:
        """Return the address of the list of jobs."""
        return f"{self.airflow}{MOUNT_PATH}{JOB_PAGES}{_query(query)}"

    def listed(self, dag_page: str | None, page: JobsPage, **changes: Any) -> str:
        """
        Return the address of a list of jobs with changes of its filter, order or position; the position is not kept.

        :param dag_page: Dag whose page has the list; ``None`` for the list of all jobs.
        """
        shown = replace(page, **{"after": None} | changes)
        query: dict[str, object] = {"name": shown.name, "status": shown.status, "sort": shown.sort}
        query |= {"descending": "true" if shown.descending else None, "after": shown.after}
        if dag_page is not None:
            return f"{self.dag(dag_page)}{_query(query)}"
        return self.jobs(dag_id=shown.dag_id, **query)

    def job(self, job_id: str) -> str:
        """Return the address of the page of a job."""
        return f"{self.jobs()}/{_quoted(job_id)}"

    def operator(self, job_id: str, operator_id: str) -> str:
        """Return the address of the page of an operator."""
        return f"{self.job(job_id)}/operators/{_quoted(operator_id)}"

    def operators(self, address: str, shown: OperatorsQuery, **changes: Any) -> str:
        """
        Return the address of a table of operators with changes of its filter or order; the position is not kept.

        :param address: Address of the page that has the table.
        """
        query = replace(shown, **{"page": 1} | changes)
        descending = "true" if query.descending else None
        position = query.page if query.page > 1 else None
        values = {"name": query.name, "sort": query.sort.value, "descending": descending, "page": position}
        return f"{address}{_query(values)}"

    def checkpoints(self, job_id: str, **query: object) -> str:
        """Return the address of the history of a job."""
        return f"{self.job(job_id)}/checkpoints{_query(query)}"

    def checkpoint(self, job_id: str, checkpoint_id: int) -> str:
        """Return the address of the page of a checkpoint."""
        return f"{self.checkpoints(job_id)}/{checkpoint_id}"

    def action(self, job_id: str, action: str, **wanted: object) -> str:
        """Return the address of the page that previews an action and asks for its confirmation."""
        return f"{self.job(job_id)}/actions/{_quoted(action)}{_query(wanted)}"

    def request(self, job_id: str, action: str) -> str:
        """Return the address that takes the request of an action."""
        return f"{self.airflow}{MOUNT_PATH}/ui/jobs/{_quoted(job_id)}/{_quoted(action)}"

    def dag(self, dag_id: str) -> str:
        """Return the address of the page of a Dag's checkpoints."""
        return f"{self.airflow}{MOUNT_PATH}/dags/{_quoted(dag_id)}"

    def run(self, dag_id: str, run_id: str) -> str:
        """Return the address of the page of a run's checkpoints."""
        return f"{self.dag(dag_id)}/runs/{_quoted(run_id)}"

    def task(self, task: TaskCoordinates | None) -> str | None:
        """Return the address of the page of a task's checkpoints; ``None`` for a script."""
        if task is None:
            return None
        query = {} if task.map_index < 0 else {"map_index": task.map_index}
        return f"{self.run(task.dag_id, task.run_id)}/tasks/{_quoted(task.task_id)}{_query(query)}"

    def airflow_dag(self, dag_id: str) -> str:
        """Return the address of Airflow's page of a Dag."""
        return f"{self.airflow}/dags/{_quoted(dag_id)}"

    def airflow_run(self, dag_id: str, run_id: str) -> str:
        """Return the address of Airflow's page of a run."""
        return f"{self.airflow_dag(dag_id)}/runs/{_quoted(run_id)}"

    def airflow_task(self, task: TaskCoordinates | None, try_number: int | None = None) -> str | None:
        """Return the address of a task instance, or of one of its tries, in Airflow; ``None`` for a script."""
        if task is None:
            return None
        mapped = "" if task.map_index < 0 else f"/mapped/{task.map_index}"
        run = self.airflow_run(task.dag_id, task.run_id)
        return f"{run}/tasks/{_quoted(task.task_id)}{mapped}{_query({'try_number': try_number})}"


def _quoted(part: str) -> str:
    return quote(part, safe="")


def _query(values: Mapping[str, object]) -> str:
    given = {name: value for name, value in values.items() if value not in (None, "")}
    return f"?{urlencode(given)}" if given else ""
