"""The coordinator's API without Airflow: a database, a clock and tasks as a test wants them."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, Self

from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import create_engine, select
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.api.app import create_app, create_server_app
from airflow_provider_statecheck.api.services import Services
from airflow_provider_statecheck.checkpoint.codec import encode
from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import RegisterAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptOwner
from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.configuration import StateServingSettings
from airflow_provider_statecheck.exceptions import AccessDeniedError
from airflow_provider_statecheck.maintenance.recover import JobRecovery, RecoverJob
from airflow_provider_statecheck.metadata.tables import METADATA, Caller
from airflow_provider_statecheck.queryable.locations import OpenStorage
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.contracts.maintenance_contract import KnownRuns
from tests.messages import ManualClock

ROOT = "/statecheck"
JOB = "nightly/2026-01-01"
UID = "features"
CALLER = Caller(dag_id="nightly", run_id="run-1", task_id="features")
OTHER_TASK = Caller(dag_id="nightly", run_id="run-1", task_id="report")
MAINTENANCE = Caller(dag_id="statecheck_maintenance", run_id="run-1", task_id="prune")
OTHER_DAG = Caller(dag_id="hourly", run_id="run-1", task_id="features")
SECRET = "the secret of whatever task asks"


class Tasks:
    """Believes who a task says it is, once for each announcement."""

    def __init__(self) -> None:
        self.announced = 0
        self.is_over: set[Caller] = set()
        self.teams: dict[str, str] = {}

    def prove(self, ti_id: str, secret: str) -> Caller:
        if secret != SECRET or not self.announced:
            raise AccessDeniedError("Expected the secret that was announced, found another.")
        self.announced -= 1
        return Caller(**json.loads(ti_id))

    def running(self, caller: Caller) -> Caller:
        return caller

    def is_waiting(self, caller: Caller) -> bool:
        return caller not in self.is_over

    def has_teams(self) -> bool:
        return bool(self.teams)

    def of_team(self, dag_id: str, others: Collection[str]) -> frozenset[str]:
        return frozenset(other for other in others if self.teams.get(other) == self.teams.get(dag_id))

    def is_dag(self, dag_id: str) -> bool:
        return dag_id in ("nightly", "hourly")


@dataclass(frozen=True, slots=True)
class Attempt:
    """A registered attempt and its token."""

    token: str
    message: dict[str, Any]
    grant: dict[str, Any]

    @property
    def ref(self) -> dict[str, Any]:
        return dict(self.grant["attempt"])

    @property
    def job_id(self) -> str:
        return str(self.ref["job_id"])


@dataclass
class ApiServer:
    """The app in this process, spoken to as a client does."""

    engine: Engine
    clock: ManualClock = field(default_factory=ManualClock)
    tasks: Tasks = field(default_factory=Tasks)
    runs: KnownRuns = field(default_factory=KnownRuns)
    is_of_test_run: bool = False
    open_storage: OpenStorage | None = CheckpointStorage.open
    state_settings: StateServingSettings = field(default_factory=StateServingSettings)
    reads_other_jobs: bool = True

    def __post_init__(self) -> None:
        self.services = Services(
            lambda: self.engine,
            self.tasks,
            clock=self.clock,
            runs=self.runs,
            maintenance_dags=lambda: frozenset({MAINTENANCE.dag_id}),
            reads_other_jobs=lambda: self.reads_other_jobs,
            open_storage=self.open_storage,
            read_state_settings=lambda: self.state_settings,
        )
        self.client = TestClient(create_server_app(self.services) if self.is_of_test_run else self._api_server())

    def _api_server(self) -> FastAPI:
        root = FastAPI(openapi_url=None)
        root.mount(ROOT, create_app(self.services))
        return root

    def __enter__(self) -> Self:
        self.client.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.client.__exit__()
        self.engine.dispose()

    def call(self, method: str, path: str, token: str | None = None, body: Any = None) -> Any:
        """Send a request and return the response."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return self.client.request(method, f"{ROOT}{path}", json=body, headers=headers)

    def post(self, verb: str, token: str, body: Any) -> Any:
        """Send a message of an attempt."""
        return self.call("POST", f"/v1/attempts/{verb}", token, body)

    def task_token(self, caller: Caller = CALLER) -> str:
        """Return a new token of a task."""
        self.tasks.announced += 1
        body = {"ti_id": json.dumps(asdict(caller)), "secret": SECRET}
        return str(accepted(self.call("POST", "/v1/token", body=body))["token"])

    def reading_token(self, job_id: str) -> str:
        """Return a new token that reads one job."""
        return str(accepted(self.call("POST", "/v1/token/read", self.task_token(), {"job_id": job_id}))["token"])

    def attempt(self, job: str = JOB, uid: str = UID, caller: Caller = CALLER, **changes: Any) -> Attempt:
        """Register an attempt with a token of its own."""
        token, message = self.task_token(caller), registration(job, uid, caller, **changes)
        return Attempt(token, message, accepted(self.post("register", token, message)))

    def complete(self, attempt: Attempt) -> int:
        """Complete one checkpoint and return its id."""
        checkpoint_id = self.trigger(attempt)
        accepted(self.post("acknowledge", attempt.token, acknowledgement(attempt, checkpoint_id)))
        return checkpoint_id

    def trigger(self, attempt: Attempt) -> int:
        """Begin a checkpoint and return its id."""
        body = {"attempt": attempt.ref, "request_key": new_key()}
        return int(accepted(self.post("trigger", attempt.token, body))["checkpoint_id"])

    def finish(self, attempt: Attempt, status: str = "finished") -> Any:
        """End an attempt and return the response."""
        return self.post("finish", attempt.token, {"attempt": attempt.ref, "status": status})

    def rows(self) -> dict[str, list[str]]:
        """Return all that is kept."""
        with self.engine.connect() as connection:
            tables = METADATA.sorted_tables
            return {table.name: sorted(map(repr, connection.execute(select(table)))) for table in tables}


@cache
def description() -> dict[str, Any]:
    """Return the API's OpenAPI document."""
    return create_app(Services(lambda: create_engine("sqlite://"), Tasks())).openapi()


def accepted(response: Any) -> Any:
    assert response.status_code == 200, response.text
    return response.json()


def owner_of(caller: Caller, **changes: Any) -> AttemptOwner:
    values: dict[str, Any] = {
        "logical_task": f"{caller.dag_id}/{caller.task_id}",
        "run_key": "2026-01-01",
        "run_id": caller.run_id,
        "clear_marker": "3/0",
        "label": "a try of a task",
    }
    return AttemptOwner(**values | changes)


def registration(job: str = JOB, uid: str = UID, caller: Caller = CALLER, **changes: Any) -> dict[str, Any]:
    message = RegisterAttempt(
        job_name=job,
        uid=uid,
        attempt_key=new_key(),
        owner=owner_of(caller),
        storage_base="memory://base",
        allow_non_restored_state=True,
    )
    return {**encode(message), **changes}


def recover(store: JobStore, name: str, *uids: str) -> None:
    """Make the rows of a job as they are after a recovery."""
    JobRecovery(store).recover(
        RecoverJob(
            job_id=job_id_of(name),
            name=name,
            storage_base="memory://base",
            highest_epoch=1,
            highest_checkpoint_id=1,
            generations=dict.fromkeys(uids, 0),
            checkpoints=(),
        )
    )


def acknowledgement(attempt: Attempt, checkpoint_id: int) -> dict[str, Any]:
    uri = f"memory://base/{attempt.job_id}/chk-{checkpoint_id}/_metadata"
    digest = "0" * 64
    return {
        "attempt": attempt.ref,
        "checkpoint_id": checkpoint_id,
        "metadata_uri": uri,
        "metadata_size": 1,
        "metadata_sha256": digest,
    }


def reference(job: str = JOB, uid: str = UID, epoch: int = 1) -> dict[str, Any]:
    return {"job_id": job_id_of(job), "operator_id": operator_id_of(uid), "epoch": epoch}
