"""What the page of a job sends for the users of Airflow, and what Airflow records of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fastapi.testclient import TestClient
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from airflow_provider_statecheck.checkpoint.ids import JobId, new_key

EDITOR, VIEWER = "the-editor", "the-viewer"
Permit = Callable[[Callable[..., bool]], None]
"""The fixture ``permit``."""
USERS = {EDITOR: "user", VIEWER: "viewer"}


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
