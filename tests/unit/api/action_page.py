"""What the page of a job sends for the users of Airflow, and what Airflow records of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from airflow_provider_statecheck.checkpoint.ids import JobId, new_key

EDITOR, VIEWER = "the-editor", "the-viewer"
Permit = Callable[[Callable[..., bool]], None]
"""The fixture ``permit``."""
USERS = {EDITOR: "user", VIEWER: "viewer"}


@contextmanager
def airflow_app(users: Mapping[str, str], folder: Path) -> Iterator[TestClient]:
    """Serve Airflow's api-server in this process, with users and their roles."""
    from airflow.api_fastapi.app import create_app, purge_cached_app

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", ",".join(f"{n}:{r}" for n, r in users.items()))
        passwords = folder / "passwords_of_actions.json"
        passwords.write_text(json.dumps({name: f"password of {name}" for name in users}))
        patch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE", str(passwords))
        patch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "x" * 64)
        purge_cached_app()
        yield TestClient(create_app(apps="core"), raise_server_exceptions=False)
        purge_cached_app()


def log_in(airflow: TestClient, name: str) -> str:
    """Return the token of a user."""
    reply = airflow.post("/auth/token", json={"username": name, "password": f"password of {name}"})
    return str(reply.json()["access_token"])


class ActionPage:
    """What the page of a job sends for a user."""

    def __init__(self, client: TestClient, token: str, job: JobId) -> None:
        self._client = client
        self._headers = {"Authorization": f"Bearer {token}"}
        self._job = job

    def send(self, action: str, headers: dict[str, str] | None = None, **message: Any) -> Any:
        sent = {"X-Statecheck-Action": action, "Sec-Fetch-Site": "same-origin"} if headers is None else headers
        body = {"request_key": new_key()} | message
        return self._client.post(f"/statecheck/ui/jobs/{self._job}/{action}", json=body, headers=self._headers | sent)

    def preview(self, action: str, **query: Any) -> Any:
        return self._get(f"{action}/preview", query)

    def actions(self) -> Any:
        return self._get("actions", {})

    def _get(self, path: str, query: dict[str, Any]) -> Any:
        return self._client.get(f"/statecheck/ui/jobs/{self._job}/{path}", params=query, headers=self._headers)


def audit_entries(engine: Engine, job: JobId) -> list[Any]:
    from airflow.models.log import Log

    with Session(engine) as session:
        entries = session.scalars(select(Log).where(Log.event.like("statecheck.%")).order_by(Log.id)).all()
        return [entry for entry in entries if json.loads(entry.extra or "{}")["job_id"] == job]
