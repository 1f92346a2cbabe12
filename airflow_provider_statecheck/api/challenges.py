"""
Challenges of tasks: where a task announces the hash of its secret, and the api-server reads it.

Only the task itself can write there, with the token that Airflow gave to its supervisor.
"""

from __future__ import annotations

import hmac
import json
from abc import ABC, abstractmethod
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import AccessDeniedError
from airflow_provider_statecheck.gateway.verbs import CHALLENGE_KEY, challenge_of
from airflow_provider_statecheck.overriding import override

if TYPE_CHECKING:
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy.orm import Session


def announced_challenges() -> Challenges:
    """Return the place that the installed version of Airflow has: 3.2 has no state store of tasks."""
    return StoredChallenges() if find_spec("airflow.state") else RenderedChallenges()


class Challenges(ABC):
    """Challenges of running tasks; the methods work in the transaction of the caller, who has locked the task."""

    def consume(self, session: Session, ti: TaskInstance, secret: str) -> None:
        """
        Compare the challenge of a task with a secret, and remove it.

        :raises AccessDeniedError: if the task has announced no challenge, or that of another secret.
        """
        found = self._read(session, ti)
        if found is None or not _is_equal(found, challenge_of(secret)):
            raise AccessDeniedError(
                f"Expected the secret that task instance {ti.id} announced, found another or one that was used before; "
                "announce a new secret."
            )
        self._remove(session, ti)

    @abstractmethod
    def _read(self, session: Session, ti: TaskInstance) -> str | None: ...

    @abstractmethod
    def _remove(self, session: Session, ti: TaskInstance) -> None: ...


class StoredChallenges(Challenges):
    """Challenges in the state store of the task."""

    @override
    def _read(self, session: Session, ti: TaskInstance) -> str | None:
        from airflow.state import get_state_backend

        found = get_state_backend().get(_scope(ti), CHALLENGE_KEY, session=session)
        return None if found is None else _text(found)

    @override
    def _remove(self, session: Session, ti: TaskInstance) -> None:
        from airflow.state import get_state_backend

        get_state_backend().delete(_scope(ti), CHALLENGE_KEY, session=session)


class RenderedChallenges(Challenges):
    """Challenges among the rendered fields of the task."""

    @override
    def _read(self, session: Session, ti: TaskInstance) -> str | None:
        row = _rendered_fields(session, ti)
        found = None if row is None else row.rendered_fields.get(CHALLENGE_KEY)
        return found if isinstance(found, str) else None

    @override
    def _remove(self, session: Session, ti: TaskInstance) -> None:
        row = _rendered_fields(session, ti)
        row.rendered_fields = {name: value for name, value in row.rendered_fields.items() if name != CHALLENGE_KEY}


def _is_equal(one: str, other: str) -> bool:
    # compare_digest() accepts only ASCII strings, and the task may have written any text.
    return hmac.compare_digest(one.encode(errors="replace"), other.encode())


def _scope(ti: TaskInstance) -> Any:
    from airflow.state import TaskScope

    return TaskScope(dag_id=ti.dag_id, run_id=ti.run_id, task_id=ti.task_id, map_index=ti.map_index)


def _text(stored: str) -> str:
    # The task stores a JSON value; the server returns it as JSON text.
    try:
        return str(json.loads(stored))
    except ValueError:
        return stored


def _rendered_fields(session: Session, ti: TaskInstance) -> Any:
    from airflow.models.renderedtifields import RenderedTaskInstanceFields

    # The task may render its fields again while the api-server reads them.
    key = {"dag_id": ti.dag_id, "task_id": ti.task_id, "run_id": ti.run_id, "map_index": ti.map_index}
    return session.get(RenderedTaskInstanceFields, key, populate_existing=True)
