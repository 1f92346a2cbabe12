"""Airflow's own word on whether a task still runs."""

from __future__ import annotations

from airflow_provider_statecheck.api.airflow_tasks import task_state
from airflow_provider_statecheck.checkpoint.records import AttemptOwner
from airflow_provider_statecheck.metadata.token_store import Caller


class AirflowTaskLiveness:
    """Looks at the task instance's row; only where the ORM is open."""

    def is_running(self, owner: AttemptOwner) -> bool:
        """Tell whether the owner's task instance is in the state ``running``."""
        coordinates = dict(owner.airflow)
        if not coordinates:
            return False
        task = Caller(
            dag_id=coordinates["dag_id"],
            run_id=coordinates["run_id"],
            task_id=coordinates["task_id"],
            map_index=int(coordinates["map_index"]),
        )
        return task_state(task) == "running"
