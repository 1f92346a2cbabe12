"""Jobs on the pages of a user: only those whose Dags the user may read."""

from __future__ import annotations

from dataclasses import replace

from airflow.api_fastapi.auth.managers.models.base_user import BaseUser

from airflow_provider_statecheck.api.airflow_access import PermittedDags
from airflow_provider_statecheck.api.pages.job_views import ShownJob, shown_job
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.job_list import JobList, JobsPage
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import AccessDeniedError, CheckpointNotFoundError


class ReadableJobs:
    """
    Jobs that a user may read. For their pages, other jobs do not exist.

    :param coordinator: Coordinator that has the jobs.
    :param user: User of Airflow.
    """

    def __init__(self, coordinator: AttemptCoordinator, user: BaseUser) -> None:
        self._coordinator = coordinator
        self._dags = PermittedDags(user)
        self._editable = PermittedDags(user, "PUT")

    def require_dag(self, dag_id: str) -> None:
        """
        Require a Dag whose task instances the user may read.

        :raises AccessDeniedError: if the user may not.
        """
        self._dags.require(dag_id)

    def job(self, job_id: str) -> ShownJob:
        """
        Return a job.

        :raises CheckpointNotFoundError: if it does not exist.
        :raises AccessDeniedError: if the user may not read it.
        """
        view = self._coordinator.describe(JobId(job_id))
        self._dags.require_all(view)
        return self._shown(view)

    def editable(self, job_id: str) -> ShownJob:
        """
        Return a job that the user may edit.

        :raises CheckpointNotFoundError: if it does not exist.
        :raises AccessDeniedError: if the user may not read or edit it.
        """
        job = self.job(job_id)
        self._editable.require_all(job.view)
        return job

    def overviews(self, page: JobsPage) -> JobList:
        """Return those jobs of a page of the list that the user may read; other jobs are not counted either."""
        readable = self._dags.among(self._coordinator.dag_ids(beside=page.dag_id))
        return self._coordinator.job_overviews(replace(page, readable_dag_ids=readable))

    def of_run(self, dag_id: str, run_id: str, *task: tuple[str, str]) -> tuple[ShownJob, ...]:
        """
        Return the jobs that the tasks of a Dag run have worked on.

        :param task: Coordinates of the attempts to include.
        """
        views = map(self._view, self._coordinator.jobs_of_run(dag_id, run_id))
        shown = (self._shown(view, task) for view in views if view is not None)
        return tuple(each for each in shown if each.rows)

    def _shown(self, view: JobView, task: tuple[tuple[str, str], ...] = ()) -> ShownJob:
        return shown_job(view, task, is_editable=self._editable.permits_all(view))

    def _view(self, job_id: JobId) -> JobView | None:
        try:
            view = self._coordinator.describe(job_id)
            self._dags.require_all(view)
        except (AccessDeniedError, CheckpointNotFoundError):  # not readable, or removed in the meantime
            return None
        return view
