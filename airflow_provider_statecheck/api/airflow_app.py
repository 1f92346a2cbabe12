"""The API as mounted by Airflow's api-server, with what only Airflow users may call."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Annotated

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Body, FastAPI, Query

from airflow_provider_statecheck.api import action_routes, examples
from airflow_provider_statecheck.api.access import ServicesDep
from airflow_provider_statecheck.api.airflow_access import (
    AirflowAccess,
    JobsDep,
    PermittedDags,
    jobs_of_login,
    login_of,
)
from airflow_provider_statecheck.api.airflow_services import airflow_services
from airflow_provider_statecheck.api.app import create_app
from airflow_provider_statecheck.api.pages import routes
from airflow_provider_statecheck.api.pages.rendering import PageFiles
from airflow_provider_statecheck.api.requests import MessageRoute
from airflow_provider_statecheck.api.tokens import USER_LIFETIME, IssuedToken
from airflow_provider_statecheck.checkpoint.job_list import LARGEST_JOB_PAGE, JobList, JobSort, JobsPage, ListedStatus
from airflow_provider_statecheck.gateway.verbs import VERSION_PATH
from airflow_provider_statecheck.metadata.tables import Caller, UserCaller
from airflow_provider_statecheck.queryable.locations import OpenStorage

router = APIRouter(prefix="/token", tags=["tokens"], route_class=MessageRoute)
list_router = APIRouter(prefix="/job-list", tags=["jobs"], route_class=MessageRoute)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginRequest:
    """The running task instance that a user requests a token for."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1


@router.post("/login")
def login(
    task: Annotated[LoginRequest, Body(openapi_examples=examples.of(LoginRequest))],
    services: ServicesDep,
    user: GetUserDep,
) -> IssuedToken:
    """
    Issue the token of a running task to an Airflow user who may edit task instances of its Dag.

    The token reads only jobs that the user may read, and works only on jobs if the user may edit all their Dags, as
    each call checks.
    """
    PermittedDags(user, "PUT").require(task.dag_id)
    running = services.tasks.running(Caller(**asdict(task)))
    return services.tokens.issue(replace(running, login=login_of(user)))


@dataclass(frozen=True, slots=True, kw_only=True)
class UserReadRequest:
    """The job that a user requests a read token for."""

    job_id: str
    lifetime_seconds: float = USER_LIFETIME.total_seconds()
    """Validity of the token, up to a day. It reads nothing while the user lacks the permission."""


@router.post("/state")
def user_reader(
    request: Annotated[UserReadRequest, Body(openapi_examples=examples.of(UserReadRequest))],
    services: ServicesDep,
    jobs: JobsDep,
) -> IssuedToken:
    """
    Issue a token that can only read one job and its state.

    The user must be permitted to read the task instances of every Dag that works on the job; for others, it does not
    exist.
    """
    job_id = jobs.view(request.job_id).job.job_id
    caller = UserCaller(user=jobs.user.get_id(), login=login_of(jobs.user))
    return services.tokens.issue_user_reader(caller, job_id, request.lifetime_seconds)


@list_router.get("", responses={200: {"content": {"application/json": {"examples": examples.JOB_LIST}}}})
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

    Only the jobs whose Dags the user may all read are listed and counted.
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


def create_airflow_app(open_storage: OpenStorage) -> FastAPI:
    """
    Create the app; the first request opens Airflow's database.

    :param open_storage: Opens the storage of a checkpoint, for queryable state.
    """
    services = airflow_services(open_storage, jobs_of_login)
    app = create_app(services, access=AirflowAccess(services))
    app.include_router(router, prefix=VERSION_PATH)
    app.include_router(list_router, prefix=VERSION_PATH)
    app.include_router(action_routes.router)
    app.include_router(routes.description_router)
    app.include_router(routes.router)
    app.mount("/static", PageFiles(), name="static")
    return app
