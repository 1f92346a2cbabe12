"""Airflow's own word on whether a Dag run is over."""

from __future__ import annotations

from airflow_provider_statecheck.checkpoint.records import AttemptOwner
from airflow_provider_statecheck.metadata.outcomes import executing


class AirflowRuns:
    """Looks at the run's row; only where the ORM is open."""

    def is_over(self, owner: AttemptOwner) -> bool:
        """Tell whether the run of an attempt has succeeded or failed, or is gone."""
        from airflow.models.dagrun import DagRun
        from airflow.utils.session import create_session
        from sqlalchemy import select

        run = dict(owner.airflow)
        query = select(DagRun.state).where(DagRun.dag_id == run["dag_id"], DagRun.run_id == run["run_id"])
        with executing(), create_session() as session:
            return session.scalar(query) in (None, "success", "failed")
