"""What the tests need of Airflow's REST API."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import httpx
import pytest

LIMIT_SECONDS = 600.0
_POLL_SECONDS = 0.2

Value = TypeVar("Value")


def wait_until(what: str, look: Callable[[], Value | None], limit: float = LIMIT_SECONDS) -> Value:
    """Look again and again until there is something, and return it."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(_POLL_SECONDS)
    pytest.fail(f"waited {limit} s for {what}")


class AirflowApi:
    """Airflow as an administrator sees it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._client = httpx.Client(base_url=url, timeout=30)

    def close(self) -> None:
        self._client.close()

    def is_up(self) -> bool:
        """Tell whether the api-server answers, with our part of it and its tables."""
        try:
            return self._client.get("/statecheck/v1/health").is_success
        except httpx.TransportError:
            return False

    def log_in(self, user: str, password: str) -> None:
        """Log in."""
        self._client.headers["Authorization"] = f"Bearer {self.token_of(user, password)}"

    def token_of(self, user: str, password: str) -> str:
        """Return a token of a user, who need not be the one that is logged in."""
        answer = self._client.post("/auth/token", json={"username": user, "password": password})
        return str(answer.raise_for_status().json()["access_token"])

    def ask(self, method: str, path: str, token: str | None = None, body: Any = None) -> httpx.Response:
        """Call our part of the API, as the user who is logged in or with a token."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return self._client.request(method, f"/statecheck/v1/{path}", json=body, headers=headers)

    def page(self, path: str) -> httpx.Response:
        """Get one of our pages or its files, as a browser does in a frame."""
        return self._client.get(f"/statecheck{path}").raise_for_status()

    def plugins(self) -> list[dict[str, Any]]:
        return list(self._send("GET", "/plugins")["plugins"])

    def links(self, dag_id: str, run_id: str, task_id: str) -> dict[str, str]:
        """Return the links of a task instance: what its buttons open."""
        return dict(self._send("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/links")["extra_links"])

    def has_dag(self, dag_id: str) -> bool:
        return self._client.get(f"/api/v2/dags/{dag_id}").is_success

    def trigger(self, dag_id: str, run_id: str, logical_date: str, conf: dict[str, Any]) -> None:
        body = {"dag_run_id": run_id, "logical_date": logical_date, "conf": conf}
        self._send("POST", f"/dags/{dag_id}/dagRuns", body)

    def trigger_undated(self, dag_id: str, run_id: str, **body: Any) -> None:
        """Trigger a run without a logical date."""
        self._send("POST", f"/dags/{dag_id}/dagRuns", {"dag_run_id": run_id, "logical_date": None, **body})

    def backfill(self, dag_id: str, first: str, last: str, at_once: int) -> None:
        """Begin a backfill."""
        body = {"dag_id": dag_id, "from_date": first, "to_date": last, "max_active_runs": at_once}
        self._send("POST", "/backfills", body)

    def task_state(self, dag_id: str, run_id: str, task_id: str) -> list[str]:
        """Return the keys of the task state of a task."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/state-store"
        return [entry["key"] for entry in self._send("GET", path)["task_state_store"]]

    def discard_task_state(self, dag_id: str, run_id: str, task_id: str) -> None:
        """Discard the task state of a task, as a clear of Airflow 3.4 does by default."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/state-store"
        self._client.delete(f"/api/v2{path}").raise_for_status()

    def set_connection(self, conn_id: str, conn_type: str, extra: dict[str, Any], **fields: Any) -> None:
        """Create a connection, or replace it."""
        body = {"connection_id": conn_id, "conn_type": conn_type, "extra": json.dumps(extra), **fields}
        self._client.delete(f"/api/v2/connections/{conn_id}")
        self._send("POST", "/connections", body)

    def is_paused(self, dag_id: str) -> bool:
        return bool(self._send("GET", f"/dags/{dag_id}")["is_paused"])

    def unpause(self, dag_id: str) -> None:
        self._send("PATCH", f"/dags/{dag_id}", {"is_paused": False})

    def run_state(self, dag_id: str, run_id: str) -> str:
        return str(self._send("GET", f"/dags/{dag_id}/dagRuns/{run_id}")["state"])

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        return list(self._send("GET", f"/dags/{dag_id}/dagRuns")["dag_runs"])

    def tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """Return the task instances of a run, mapped ones too."""
        return list(self._send("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"])

    def clear(self, dag_id: str, run_id: str, task_ids: Iterable[str]) -> None:
        """Clear tasks and what is downstream of them, whatever their state is."""
        body = {
            "dag_run_id": run_id,
            "task_ids": list(task_ids),
            "dry_run": False,
            "only_failed": False,
            "include_downstream": True,
        }
        self._send("POST", f"/dags/{dag_id}/clearTaskInstances", body)

    def mark_failed(self, dag_id: str, run_id: str, task_id: str) -> None:
        self._send("PATCH", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}", {"new_state": "failed"})

    def result(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> Any:
        """Return what a task returned."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/return_value"
        return self._send("GET", f"{path}?map_index={map_index}")["value"]

    def _send(self, method: str, path: str, body: Any = None) -> Any:
        response = self._client.request(method, f"/api/v2{path}", json=body)
        assert response.is_success, f"{method} {path}: {response.status_code} {response.text}"
        return response.json()
