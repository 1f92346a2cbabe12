"""What the API has to know of the system that runs the tasks."""

from __future__ import annotations

from typing import Protocol

from airflow_provider_statecheck.metadata.token_store import Caller


class TaskDirectory(Protocol):
    """Answers for Airflow."""

    def prove(self, ti_id: str, secret: str) -> Caller:
        """
        Return the running task instance that holds a secret, which is of no use any more afterwards.

        :raises AccessDeniedError: if there is none, it does not run, or the secret is not its own.
        """
        ...

    def is_waiting(self, caller: Caller) -> bool:
        """Tell whether a task instance runs or is deferred."""
        ...

    def is_dag(self, dag_id: str) -> bool:
        """Tell whether there is a Dag of this id."""
        ...
