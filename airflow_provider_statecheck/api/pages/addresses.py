"""Addresses of these pages and of Airflow's pages, below the path of the api-server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self
from urllib.parse import quote, urlencode

from fastapi import Request

from airflow_provider_statecheck.api.pages.operator_rows import OperatorsQuery
from airflow_provider_statecheck.checkpoint.job_list import JobsPage
from airflow_provider_statecheck.gateway.verbs import JOB_PAGES, MOUNT_PATH

Coordinates = tuple[tuple[str, str], ...]
"""Task instance as in the owner of an attempt; empty for a script."""
_TASK = {"dag_id", "run_id", "task_id"}


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

    def task(self, task: Coordinates) -> str | None:
        """Return the address of the page of a task's checkpoints; ``None`` for a script."""
        values = dict(task)
        if not values.keys() >= _TASK:
            return None
        query = {} if _index(values) == "-1" else {"map_index": _index(values)}
        return f"{self.run(values['dag_id'], values['run_id'])}/tasks/{_quoted(values['task_id'])}{_query(query)}"

    def airflow_dag(self, dag_id: str) -> str:
        """Return the address of Airflow's page of a Dag."""
        return f"{self.airflow}/dags/{_quoted(dag_id)}"

    def airflow_run(self, dag_id: str, run_id: str) -> str:
        """Return the address of Airflow's page of a run."""
        return f"{self.airflow_dag(dag_id)}/runs/{_quoted(run_id)}"

    def airflow_task(self, task: Coordinates, try_number: int | None = None) -> str | None:
        """Return the address of a task instance, or of one of its tries, in Airflow; ``None`` for a script."""
        values = dict(task)
        if not values.keys() >= _TASK:
            return None
        mapped = "" if _index(values) == "-1" else f"/mapped/{_quoted(_index(values))}"
        run = self.airflow_run(values["dag_id"], values["run_id"])
        return f"{run}/tasks/{_quoted(values['task_id'])}{mapped}{_query({'try_number': try_number})}"


def _index(task: Mapping[str, str]) -> str:
    # The owner of an attempt comes from its client, which may name no index.
    return task.get("map_index", "-1")


def _quoted(part: str) -> str:
    return quote(part, safe="")


def _query(values: Mapping[str, object]) -> str:
    given = {name: value for name, value in values.items() if value not in (None, "")}
    return f"?{urlencode(given)}" if given else ""
