"""Airflow's own word on whether a task still runs."""

from __future__ import annotations

from airflow_provider_statecheck.checkpoint.records import AttemptOwner
from airflow_provider_statecheck.metadata.outcomes import executing


class AirflowTaskLiveness:
    """Looks at the task instance's row; only where the ORM is open."""

    def is_running(self, owner: AttemptOwner) -> bool:
        """Tell whether the owner's task instance is in the state ``running``."""
        coordinates = dict(owner.airflow)
        if not coordinates:
            return False
        from airflow.models.taskinstance import TaskInstance
        from airflow.utils.session import create_session
        from sqlalchemy import select

        query = select(TaskInstance.state).where(
            TaskInstance.dag_id == coordinates["dag_id"],
            TaskInstance.run_id == coordinates["run_id"],
            TaskInstance.task_id == coordinates["task_id"],
            TaskInstance.map_index == int(coordinates["map_index"]),
        )
        with executing(), create_session() as session:
            return bool(session.scalar(query) == "running")
