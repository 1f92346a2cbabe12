"""Two Dags with a job each on one Airflow, and holders of all kinds of credentials with rights on one Dag only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Connection, Engine, delete, insert, select, text

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.checkpoint_summary import (
    CheckpointSummary,
    LoopSummary,
    SourceSummary,
    StateSummary,
    StepSummary,
)
from airflow_provider_statecheck.checkpoint.codec import encode
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.fencing import UnknownLiveness
from airflow_provider_statecheck.checkpoint.ids import ALIGNED_OPERATOR_ID, JobId, job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import (
    AttemptRef,
    DeclineCheckpoint,
    ReportProgress,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.records import AttemptOwner
from airflow_provider_statecheck.exceptions import ConcurrentAttemptError
from airflow_provider_statecheck.maintenance.savepoints import JobSavepoints
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.tables import METADATA
from airflow_provider_statecheck.overriding import override
from tests.messages import complete_checkpoint, make_leadership, make_registration, make_savepoint_request
from tests.unit.api.action_page import airflow_app, log_in
from tests.unit.api.airflow_rows import SECRET, RunningTask, add_dag, remove_dag
from tests.unit.api.server import accepted

OWN, FOREIGN, MISSING, JOINED = "sales", "payroll", "no such job", "stock"
"""
Names of the jobs that belong to both Dags' users, tasks and drivers, and of one that does not exist. The last one was
opened for one Dag, and then joined by the other.
"""
MINE, THEIRS, KEEPING = "dag_of_mine", "dag_of_theirs", "statecheck_maintenance"
MARKER = "only-theirs-know"
"""Part of every text of the foreign job, by which a reply that tells something of it is recognised."""
SECRET_UID = f"uid-that-{MARKER}"
"""Uid of an operator of the foreign job."""
MARKED = f"attic-{MARKER}"
"""Name and Dag of a job that others do not even know by name; no request names it."""
COMPLETED = 3
"""Id of a retained checkpoint of both jobs."""

_ALL = frozenset({"GET", "PUT", "POST"})
MAY: dict[str, dict[str, frozenset[str]]] = {
    "viewer": {MINE: frozenset({"GET"})},
    "editor": {MINE: _ALL},
    "keeper": {MINE: _ALL, KEEPING: _ALL},
    "administrator": {MINE: _ALL, THEIRS: _ALL, KEEPING: _ALL, MARKED: _ALL},
}
"""
What each user may do with the Dags; the auth manager permits nothing else, and everything if it is asked about no Dag.
"""


def permits(*, method: str, details: Any, user: Any, access_entity: Any = None) -> bool:
    """Decide in place of the auth manager."""
    if details is None or not details.id:
        return True
    return method in MAY[user.get_name()].get(details.id, ())


@dataclass
class Neighbours:
    """The api-server, and the credentials of its callers by their kind."""

    airflow: TestClient
    engine: Engine
    tokens: dict[str, str] = field(default_factory=dict)
    owners: dict[str, AttemptOwner] = field(default_factory=dict)
    """Who the holders of tokens of tasks say they are."""
    attempts: dict[str, AttemptRef] = field(default_factory=dict)
    """Attempts of the holders, and by the names of the jobs those that the messages of others name."""
    leaders: dict[str, AttemptRef] = field(default_factory=dict)
    running: dict[str, RunningTask] = field(default_factory=dict)
    kept: dict[str, list[Any]] = field(default_factory=dict)

    def ask(self, method: str, path: str, token: str | None, body: Any = None, **headers: str) -> Any:
        """Send a request and return the response."""
        sent = headers if token is None else {"Authorization": f"Bearer {token}"} | headers
        return self.airflow.request(method, f"/statecheck{path}", json=body, headers=sent)

    def changes(self) -> Callable[[], bool]:
        """Return a function that tells whether the database was changed since its last call."""
        connection = self.engine.connect()
        last = [self._version(connection)]

        def changed() -> bool:
            before, last[0] = last[0], self._version(connection)
            return last[0] != before

        return changed

    @staticmethod
    def _version(connection: Connection) -> int:
        version = int(connection.execute(text("PRAGMA data_version")).scalar_one())
        connection.rollback()
        return version

    def rows_of(self, job_id: JobId) -> dict[str, list[Any]]:
        """Return all rows of a job."""
        tables = [table for table in METADATA.sorted_tables if "job_id" in table.columns]
        with self.engine.connect() as connection:
            return {t.name: connection.execute(select(t).where(t.c.job_id == job_id)).all() for t in tables}  # type: ignore[misc]

    def keep(self) -> None:
        """Remember all rows of this package."""
        with self.engine.connect() as connection:
            for table in METADATA.sorted_tables:
                self.kept[table.name] = [dict(row) for row in connection.execute(select(table)).mappings()]

    def restore(self) -> None:
        """Put the rows back that were remembered."""
        with self.engine.begin() as connection:
            for table in METADATA.sorted_tables:
                connection.execute(delete(table))
                if self.kept[table.name]:
                    connection.execute(insert(table), self.kept[table.name])

    def task_token(self, dag_id: str) -> str:
        """Return a new token that the running task of a Dag has obtained by itself."""
        task = self.running[dag_id]
        task.announce()
        return str(accepted(self.ask("POST", "/v1/token", None, {"ti_id": str(task.ti_id), "secret": SECRET}))["token"])

    def place(self, dag_id: str) -> dict[str, Any]:
        """Return the coordinates of the running task of a Dag."""
        return {"dag_id": dag_id, "run_id": self.running[dag_id].run_id, "task_id": "features", "map_index": -1}

    def login(self, user: str, dag_id: str = MINE) -> Any:
        """Request the token of the running task of a Dag as a user."""
        return self.ask("POST", "/v1/token/login", self.tokens[user], self.place(dag_id))

    def owner(self, dag_id: str) -> AttemptOwner:
        """Return the owner of attempts of the running task of a Dag."""
        place = {name: str(value) for name, value in self.place(dag_id).items()}
        return AttemptOwner(
            logical_task=f"{dag_id}/features",
            run_key="2026-01-01",
            run_id=place["run_id"],
            clear_marker="3/0",
            label="a try of a task",
            airflow=tuple(place.items()),
        )


@contextmanager
def neighbours(engine: Engine, folder: Path) -> Iterator[Neighbours]:
    """Start the server and let each holder obtain its credentials."""
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    with airflow_app(dict.fromkeys(MAY, "admin"), folder) as airflow, pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimpleAuthManager, "is_authorized_dag", staticmethod(permits))
        made = Neighbours(airflow, engine)
        for dag_id in (MINE, THEIRS, KEEPING, MARKED):
            add_dag(engine, dag_id)
            made.running[dag_id] = RunningTask.start(engine, dag_id=dag_id)
        made.tokens |= {user: log_in(airflow, user) for user in MAY}
        _work(made)
        _obtain(made)
        made.keep()
        yield made
        for dag_id in (MINE, THEIRS, KEEPING, MARKED):
            remove_dag(engine, dag_id)


def _work(made: Neighbours) -> None:
    """Let the jobs have an operator with three checkpoints, whose attempt has begun another one, and a leader."""
    for job, dag_id, uid in ((OWN, MINE, "loaded"), (FOREIGN, THEIRS, SECRET_UID), (MARKED, MARKED, SECRET_UID)):
        owner, texts = made.owner(dag_id), {} if job == OWN else _marked_texts()
        _work_in(made, job, uid, owner if job == OWN else _marked(owner), texts)
    _be_refused(made)
    made.attempts[MISSING] = AttemptRef(job_id=job_id_of(MISSING), operator_id=operator_id_of("loaded"), epoch=1)
    made.leaders[MISSING] = AttemptRef(job_id=job_id_of(MISSING), operator_id=ALIGNED_OPERATOR_ID, epoch=1)


def _work_in(made: Neighbours, job: str, uid: str, owner: AttemptOwner, texts: dict[str, Any]) -> None:
    store = SqlJobStore(made.engine)
    coordinator, aligned = AttemptCoordinator(store), AlignedCheckpoints(store)
    registered = make_registration(job_name=job, uid=uid, owner=owner, **texts.get("registration", {}))
    attempt = coordinator.register(registered).attempt
    for _ in range(COMPLETED):
        complete_checkpoint(coordinator, attempt, **texts.get("checkpoint", {}))
    pending = coordinator.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
    if texts:
        reason = CheckpointFailureReason.CHECKPOINT_DECLINED
        declined = DeclineCheckpoint(
            attempt=attempt, checkpoint_id=pending.checkpoint_id, reason=reason, message=MARKER
        )
        coordinator.decline(declined)
        coordinator.report_progress(ReportProgress(attempt=attempt, summary=texts["checkpoint"]["summary"]))
        requested = make_savepoint_request(attempt, target=f"memory://{MARKER}/saved", requested_by=MARKER)
        JobSavepoints(store).request(requested)
        coordinator.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
    made.attempts[job] = attempt
    made.leaders[job] = aligned.lead(make_leadership(job_name=job, owner=owner))


def _marked(owner: AttemptOwner) -> AttemptOwner:
    return replace(owner, run_key=f"key-{MARKER}", clear_marker=f"3/{MARKER}", label=f"a try of {MARKER}")


def _marked_texts() -> dict[str, Any]:
    """Return everything of a job that others may write, with the marker."""
    base = f"memory://base-{MARKER}"
    summary = CheckpointSummary(
        steps=(StepSummary(name=MARKER, outcome="computed"),),
        loops=(LoopSummary(name=MARKER, finished=1, total=2),),
        sources=(SourceSummary(uid=MARKER, finished_splits=1, total_splits=2),),
        states=(StateSummary(uid=MARKER, name=MARKER, kind="value", type=MARKER),),
        open_commits=(MARKER,),
        computing=MARKER,
    )
    registration = {"storage_base": base, "former_uids": (f"former-{MARKER}",), "dag_uids": {MARKER: (SECRET_UID,)}}
    return {"registration": registration, "checkpoint": {"summary": summary, "counts": {MARKER: 1}}}


class EveryTaskRuns(UnknownLiveness):
    """An Airflow whose tasks all still run."""

    @override
    def is_running(self, owner: AttemptOwner) -> bool:
        return True


def _be_refused(made: Neighbours) -> None:
    """Let a task of the other Dag be refused in the own job."""
    coordinator = AttemptCoordinator(SqlJobStore(made.engine), EveryTaskRuns())
    owner = replace(_marked(made.owner(THEIRS)), logical_task=f"{THEIRS}/{MARKER}")
    with pytest.raises(ConcurrentAttemptError):
        coordinator.register(make_registration(job_name=OWN, uid="loaded", owner=owner))


def _obtain(made: Neighbours) -> None:
    own = {"job_id": job_id_of(OWN)}
    made.tokens["forged"] = "a" * 43
    made.tokens["user_reader"] = _token(made.ask("POST", "/v1/token/state", made.tokens["viewer"], own))
    made.tokens["task_reader"] = _token(made.ask("POST", "/v1/token/read", made.task_token(MINE), own))
    made.tokens["task"] = made.task_token(MINE)
    made.tokens["login"] = _token(made.login("editor"))
    made.tokens["maintenance"] = made.task_token(KEEPING)
    made.tokens["login_of_maintenance"] = _token(made.login("keeper", KEEPING))
    for holder, token, uid in (
        ("attempt", made.task_token(MINE), "features"),
        ("attempt_by_login", _token(made.login("editor")), "by-login"),
    ):
        asked = make_registration(job_name=OWN, uid=uid, owner=made.owner(MINE))
        grant = accepted(made.ask("POST", "/v1/attempts/register", token, encode(asked)))
        made.tokens[holder], made.attempts[holder] = token, AttemptRef(**grant["attempt"])
    leading = encode(make_leadership(job_name=OWN, owner=made.owner(MINE)))
    made.tokens["leader"] = made.task_token(MINE)
    leader = AttemptRef(**accepted(made.ask("POST", "/v1/aligned/lead", made.tokens["leader"], leading)))
    made.leaders["leader"] = made.leaders[OWN] = leader
    made.tokens["ended_task"] = _of_ended_task(made)
    _join(made)
    mine = ("task", "login", "attempt", "attempt_by_login", "leader", "ended_task")
    for holder in (*mine, "joined_attempt", "joined_attempt_by_login", "joined_leader_by_login"):
        made.owners[holder] = made.owner(MINE)
    for holder in ("maintenance", "login_of_maintenance"):
        made.owners[holder] = made.owner(KEEPING)


def _join(made: Neighbours) -> None:
    """Let the tokens of one Dag be bound to a job before an operator of the other Dag joins it."""
    for holder, token in (
        ("joined_attempt", made.task_token(MINE)),
        ("joined_attempt_by_login", _token(made.login("editor"))),
    ):
        asked = make_registration(job_name=JOINED, uid=holder, owner=made.owner(MINE))
        grant = accepted(made.ask("POST", "/v1/attempts/register", token, encode(asked)))
        made.tokens[holder], made.attempts[holder] = token, AttemptRef(**grant["attempt"])
    leading = encode(make_leadership(job_name=JOINED, owner=made.owner(MINE)))
    made.tokens["joined_leader_by_login"] = token = _token(made.login("editor"))
    made.leaders[JOINED] = AttemptRef(**accepted(made.ask("POST", "/v1/aligned/lead", token, leading)))
    coordinator = AttemptCoordinator(SqlJobStore(made.engine))
    asked = make_registration(job_name=JOINED, uid=SECRET_UID, owner=made.owner(THEIRS))
    made.attempts[JOINED] = attempt = coordinator.register(asked).attempt
    for _ in range(COMPLETED):
        complete_checkpoint(coordinator, attempt)


def _of_ended_task(made: Neighbours) -> str:
    running = made.running[MINE]
    made.running[MINE] = RunningTask.start(made.engine, dag_id=MINE)
    token = made.task_token(MINE)
    made.running[MINE].become("success")
    made.running[MINE] = running
    return token


def _token(response: Any) -> str:
    return str(accepted(response)["token"])
