"""Route for the list of jobs that an Airflow user may read."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from airflow_provider_statecheck.api import examples
from airflow_provider_statecheck.api.airflow_access import JobsDep
from airflow_provider_statecheck.api.requests import MessageRoute
from airflow_provider_statecheck.checkpoint.job_list import LARGEST_JOB_PAGE, JobList, JobSort, JobsPage, ListedStatus

router = APIRouter(prefix="/job-list", tags=["jobs"], route_class=MessageRoute)


@router.get("", responses={200: {"content": {"application/json": {"examples": examples.JOB_LIST}}}})
def job_list(
    jobs: JobsDep,
    after: Annotated[str | None, Query(description="`following` of the page before")] = None,
    limit: Annotated[int, Query(description=f"Maximum number of jobs, up to {LARGEST_JOB_PAGE}")] = 50,
    sort: Annotated[JobSort, Query(description="Order of the jobs; those without a value come last")] = JobSort.NAME,
    descending: Annotated[bool, Query(description="Whether the order is descending")] = False,
    contains: Annotated[str | None, Query(description="Text in the names of the jobs")] = None,
    status: Annotated[ListedStatus | None, Query(description="Only jobs with this status")] = None,
    dag_id: Annotated[str | None, Query(description="Only jobs with attempts of this Dag")] = None,
    with_test_jobs: Annotated[bool, Query(description="Whether jobs of test runs are listed")] = False,
) -> JobList:
    """
    Return a page of the list of jobs, and the number of jobs by status.

    Only jobs are listed and counted all of whose Dags the user may read.
    """
    page = JobsPage(
        after=after,
        limit=limit,
        sort=sort,
        descending=descending,
        name=contains,
        status=status,
        dag_id=dag_id,
        with_test_jobs=with_test_jobs,
    )
    return jobs.overviews(page)
