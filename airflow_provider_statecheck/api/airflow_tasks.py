"""
Airflow's word on who asks: the challenge exchange.

A task writes the hash of a secret into its own task state store, which Airflow lets nobody else write, and then shows
the secret. So no worker has to be given a password, whatever executor runs it.
"""

from __future__ import annotations

import hmac
import json
from typing import TYPE_CHECKING
from uuid import UUID

from airflow_provider_statecheck.exceptions import AccessDeniedError
from airflow_provider_statecheck.gateway.challenge import CHALLENGE_KEY, challenge_of
from airflow_provider_statecheck.metadata.outcomes import executing
from airflow_provider_statecheck.metadata.token_store import Caller

if TYPE_CHECKING:
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy.orm import Session


class AirflowTasks:
    """Task instances in Airflow's database; only where the ORM is open."""

    def prove(self, ti_id: str, secret: str) -> Caller:
        """
        Return the running task instance that holds a secret, which is of no use any more afterwards.

        :raises AccessDeniedError: if there is none, it does not run, or the secret is not its own.
        :raises CoordinatorUnavailableError: if the database does not answer.
        """
        from airflow.utils.session import create_session

        # A session of its own: the first statement of the transaction is the lock.
        with executing(), create_session(scoped=False) as session:
            _lock_if_sqlite(session)
            ti = _running_task(session, ti_id)
            _use_up(session, ti, secret)
            return Caller(dag_id=ti.dag_id, run_id=ti.run_id, task_id=ti.task_id, map_index=ti.map_index)

    def is_waiting(self, caller: Caller) -> bool:
        """Tell whether a task instance runs or is deferred."""
        return task_state(caller) in ("running", "deferred")

    def is_dag(self, dag_id: str) -> bool:
        """Tell whether there is a Dag of this id."""
        from airflow.models.dag import DagModel
        from airflow.utils.session import create_session

        with executing(), create_session() as session:
            return session.get(DagModel, dag_id) is not None


def task_state(task: Caller) -> str | None:
    """Return the state of a task instance, ``None`` if there is no such one."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    query = select(TaskInstance.state).where(
        TaskInstance.dag_id == task.dag_id,
        TaskInstance.run_id == task.run_id,
        TaskInstance.task_id == task.task_id,
        TaskInstance.map_index == task.map_index,
    )
    with executing(), create_session() as session:
        return session.scalar(query)


def _lock_if_sqlite(session: Session) -> None:
    # SQLite has no row locks: two exchanges would both read the secret before either deletes it.
    from sqlalchemy import text

    if session.get_bind().dialect.name == "sqlite":
        session.execute(text("BEGIN IMMEDIATE"))


def _running_task(session: Session, ti_id: str) -> TaskInstance:
    from airflow.models.taskinstance import TaskInstance

    # The lock makes two exchanges of one secret wait for each other, so that only the first finds it.
    ti = session.get(TaskInstance, _uuid(ti_id), with_for_update={"of": TaskInstance})
    if ti is None or ti.state != "running":
        raise AccessDeniedError(
            f"Expected a running task instance {ti_id}, found {'none' if ti is None else ti.state}; only a task that "
            f"runs gets a token."
        )
    return ti


def _use_up(session: Session, ti: TaskInstance, secret: str) -> None:
    from airflow.state import TaskScope, get_state_backend

    backend = get_state_backend()
    scope = TaskScope(dag_id=ti.dag_id, run_id=ti.run_id, task_id=ti.task_id, map_index=ti.map_index)
    written = backend.get(scope, CHALLENGE_KEY, session=session)
    if written is None or not _is_equal(_text(written), challenge_of(secret)):
        raise AccessDeniedError(
            f"Expected the secret that task instance {ti.id} announced in its state store, found another or one that was "
            f"used before."
        )
    backend.delete(scope, CHALLENGE_KEY, session=session)


def _is_equal(one: str, other: str) -> bool:
    # Of texts, the comparison takes ASCII alone, and anything may be in the store.
    return hmac.compare_digest(one.encode(errors="replace"), other.encode())


def _text(stored: str) -> str:
    # The task's side stores any JSON value; the server keeps it as JSON text.
    try:
        return str(json.loads(stored))
    except ValueError:
        return stored


def _uuid(ti_id: str) -> UUID:
    try:
        return UUID(ti_id)
    except ValueError:
        raise AccessDeniedError("Expected the id of a task instance, found something else.") from None
