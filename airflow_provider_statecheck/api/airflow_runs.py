"""Airflow's own word on how a Dag run ended."""

from __future__ import annotations

from airflow_provider_statecheck.checkpoint.job_status import JobStatus
from airflow_provider_statecheck.checkpoint.records import AttemptOwner
from airflow_provider_statecheck.metadata.outcomes import executing

_ENDED = {None: JobStatus.CANCELED, "success": JobStatus.FINISHED, "failed": JobStatus.FAILED}
"""A run that somebody marked as failed looks like one that failed; so it counts as the end after which more is kept."""


class AirflowRuns:
    """Looks at the run's row; only where the ORM is open."""

    def ended_as(self, owner: AttemptOwner) -> JobStatus | None:
        """Say how the run of an attempt ended, ``None`` as long as it has not; one that is gone was cancelled."""
        from airflow.models.dagrun import DagRun
        from airflow.utils.session import create_session
        from sqlalchemy import select

        run = dict(owner.airflow)
        query = select(DagRun.state).where(DagRun.dag_id == run["dag_id"], DagRun.run_id == run["run_id"])
        with executing(), create_session() as session:
            return _ENDED.get(session.scalar(query))
