"""The pages on a server in this process, with made jobs and a user who may read chosen Dags."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.api_fastapi.core_api.security import get_user
from airflow.models.dag import DagModel
from fastapi import FastAPI
from fastapi.testclient import TestClient

from airflow_provider_statecheck.api import airflow_access, forks
from airflow_provider_statecheck.api.app import create_app
from airflow_provider_statecheck.api.pages import routes
from airflow_provider_statecheck.api.pages.rendering import PageFiles
from airflow_provider_statecheck.api.services import Services
from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.fencing import UnknownLiveness
from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.messages import (
    AttemptGrant,
    AttemptRef,
    ConfirmRestore,
    DeclineCheckpoint,
    FinishAttempt,
    ReportProgress,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, Transport
from airflow_provider_statecheck.maintenance.actions import JobActions
from airflow_provider_statecheck.maintenance.rewind import JobRewinding
from airflow_provider_statecheck.maintenance.savepoints import JobSavepoints
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.tables import Caller
from tests.messages import (
    ManualClock,
    make_acknowledgement,
    make_owner,
    make_registration,
    make_savepoint_request,
)
from tests.sqlite_rows import new_store
from tests.unit.api.pages.html import Page

ROOT = "/statecheck"
START = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


class Reader:
    """A user who may read the task instances of some Dags, and edit those of fewer."""

    def __init__(self, *dag_ids: str, edits: tuple[str, ...] = ()) -> None:
        self.dag_ids = dag_ids
        self.edits = edits

    def get_name(self) -> str:
        """Return the name of the user."""
        return "ann"


class Manager:
    """An auth manager that looks at nothing but the list of the user."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def is_authorized_dag(self, *, method: str, details: Any, user: Reader, **_: Any) -> bool:
        self.asked.append((method, details.id))
        return details.id in (user.dag_ids if method == "GET" else user.edits)


@dataclass
class MadeJob:
    """A job in the making: attempts, checkpoints, failures and savepoints."""

    store: SqlJobStore
    clock: ManualClock
    name: str = "sales"
    uid: str = "aggregate"
    task: Caller = field(default_factory=lambda: Caller(dag_id="nightly", run_id="run-1", task_id="features"))
    tries: int = 0
    attempt: AttemptRef = field(init=False)
    grant: AttemptGrant = field(init=False)
    coordinator: AttemptCoordinator = field(init=False)

    def __post_init__(self) -> None:
        self.coordinator = AttemptCoordinator(self.store)

    def begin(self, transport: Transport | None = None, **changes: Any) -> MadeJob:
        """Register the next try, which restores the newest checkpoint."""
        self.tries += 1
        task = self.task
        owner = make_owner(
            logical_task=f"{task.dag_id}/{task.task_id}",
            run_id=task.run_id,
            label=f"task {task.dag_id}.{task.task_id} of run {task.run_id}, try {self.tries}",
            airflow=task.pairs,
            transport=transport,
        )
        self.grant = self.coordinator.register(
            make_registration(**{"job_name": self.name, "uid": self.uid, "owner": owner, "num_retained": 3} | changes)
        )
        self.attempt = self.grant.attempt
        return self

    def restore(self, summary: CheckpointSummary | None = None) -> MadeJob:
        """Confirm the restore of the first candidate."""
        self.coordinator.confirm_restore(
            ConfirmRestore(attempt=self.attempt, checkpoint_id=self.grant.candidates[0].checkpoint_id)
        )
        return self if summary is None else self.report(summary)

    def report(self, summary: CheckpointSummary) -> MadeJob:
        """Report the progress of the attempt."""
        self.coordinator.report_progress(ReportProgress(attempt=self.attempt, summary=summary))
        return self

    def checkpoint(
        self,
        *,
        new: int = 1 << 20,
        full: int = 1 << 22,
        seconds: float = 2,
        summary: CheckpointSummary | None = None,
        has_commit: bool = False,
        **changes: Any,
    ) -> int:
        """Complete a checkpoint, and return its id."""
        self.clock.advance(30)
        pending = self.coordinator.trigger(TriggerCheckpoint(attempt=self.attempt, request_key=new_key(), **changes))
        self.clock.advance(seconds)
        self.coordinator.acknowledge(
            make_acknowledgement(
                self.attempt,
                pending,
                state_size_bytes=new,
                full_size_bytes=full,
                summary=summary,
                has_commit=has_commit,
            )
        )
        return pending.checkpoint_id

    def request_savepoint(self, by: str = "ann", target: str | None = None) -> str:
        """Request a savepoint, and return the key of the request."""
        request = make_savepoint_request(self.attempt, requested_by=by, target=target)
        return JobSavepoints(self.store).request(request).request_key

    def decline(self, message: str) -> None:
        """Let a checkpoint fail."""
        pending = self.coordinator.trigger(TriggerCheckpoint(attempt=self.attempt, request_key=new_key()))
        self.clock.advance(1)
        reason = CheckpointFailureReason.IO_EXCEPTION
        self.coordinator.decline(
            DeclineCheckpoint(attempt=self.attempt, checkpoint_id=pending.checkpoint_id, reason=reason, message=message)
        )

    def end(self, status: AttemptStatus = AttemptStatus.FINISHED, message: str = "") -> None:
        """End the attempt."""
        self.clock.advance(5)
        self.coordinator.finish(FinishAttempt(attempt=self.attempt, status=status, message=message))


@dataclass
class Site:
    """The pages, spoken to as a browser does."""

    store: SqlJobStore
    clock: ManualClock
    outer: FastAPI
    client: TestClient
    manager: Manager
    user: Reader
    states: dict[Caller, str]
    templates: dict[tuple[str, str], str]
    """The argument ``from_checkpoint`` by Dag and task."""
    actions: JobActions

    def job(self, name: str = "sales", **values: Any) -> MadeJob:
        """Return a job that has no attempts yet."""
        return MadeJob(self.store, self.clock, name, **values)

    def read(self, path: str, status: int = 200) -> Page:
        """Return a page below ``/statecheck``."""
        reply = self.client.get(ROOT + path)
        assert reply.status_code == status, reply.text
        return Page(reply.text)


def _task(template: str) -> forks.ForkingTask:
    return forks.ForkingTask(from_checkpoint=template, fork="", params={"restore_from": "latest", "month": 12})


@contextmanager
def open_site(monkeypatch: pytest.MonkeyPatch, root: str = ROOT) -> Iterator[Site]:
    """Serve the pages over an in-memory store; the user may read the Dag ``nightly``."""
    clock, manager, user, states = ManualClock(START), Manager(), Reader("nightly"), dict[Caller, str]()
    templates = dict[tuple[str, str], str]()
    store = new_store(clock)
    services = Services(lambda: pytest.fail("the pages need no database"), None, clock=clock)  # type: ignore[arg-type]
    services.__dict__["rows"] = store
    services.__dict__["coordinator"] = AttemptCoordinator(store)
    services.__dict__["actions"] = actions = JobActions(
        store, JobSavepoints(store), JobRewinding(store, UnknownLiveness())
    )
    app = create_app(services)
    app.include_router(routes.router)
    app.mount("/static", PageFiles())
    app.dependency_overrides[get_user] = lambda: user
    monkeypatch.setattr(airflow_access, "get_auth_manager", lambda: manager)
    monkeypatch.setattr(DagModel, "get_dag_id_to_team_name_mapping", lambda dag_ids: {})
    monkeypatch.setattr(routes, "task_state", states.get)
    for module in (forks, routes):
        monkeypatch.setattr(module, "forking_task", lambda *task: _task(templates.get(task, "")))
    monkeypatch.setattr(forks, "conf_of_run", lambda point: {"restore_from": "latest", "output": "<i>here</i>"})
    outer = FastAPI(openapi_url=None)
    outer.mount(root, app)
    yield Site(store, clock, outer, TestClient(outer), manager, user, states, templates, actions)
