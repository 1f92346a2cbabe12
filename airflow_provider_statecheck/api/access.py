"""
Authorization of calls by the token of the caller.

A route depends on the record of the caller's token and checks it with one of the functions ``require_*``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool

from airflow_provider_statecheck.api.job_access import Checked, bearer_token
from airflow_provider_statecheck.api.services import Services, TaskDirectory
from airflow_provider_statecheck.checkpoint.ids import TEST_NAMESPACE, is_test_job, job_id_of
from airflow_provider_statecheck.checkpoint.messages import AttemptRef, RegisterAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptOwner
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import AccessDeniedError
from airflow_provider_statecheck.metadata.token_store import Caller, TokenRecord


def services_of(request: Request) -> Services:
    """Return the services of the app."""
    services: Services = request.app.state.services
    return services


ServicesDep = Annotated[Services, Depends(services_of)]


def takes_test_jobs(request: Request) -> bool:
    """Return ``True`` if the app serves a test run."""
    return bool(request.app.state.takes_test_jobs)


TakesTestJobsDep = Annotated[bool, Depends(takes_test_jobs)]


async def _check_token(request: Request) -> TokenRecord:
    return await run_in_threadpool(services_of(request).tokens.check, await bearer_token(request))


TokenDep = Annotated[TokenRecord, Depends(Checked(_check_token))]


def require_attempt(token: TokenRecord, attempt: AttemptRef | None) -> None:
    """
    Require the token of an attempt.

    :raises AccessDeniedError: if the token belongs to another attempt or to none.
    """
    if attempt is None or token.attempt != attempt:
        raise AccessDeniedError(
            "Expected the token of the attempt in the message, found another token; use the token that registered it."
        )


def require_task(token: TokenRecord) -> None:
    """
    Require the token of a task that is not yet bound to a job.

    :raises AccessDeniedError: if the token is bound to a job.
    """
    if token.is_read_only or token.job_id is not None:
        raise AccessDeniedError("Expected the token of a task, found one that is bound to a job; request a new token.")


def require_maintenance(token: TokenRecord, services: Services) -> None:
    """
    Require the token of a task of a maintenance Dag.

    :raises AccessDeniedError: if the task belongs to another Dag, or if the token is bound to a job.
    """
    require_task(token)
    allowed = services.maintenance_dags()
    if token.task.dag_id not in allowed:
        raise AccessDeniedError(
            f"Expected a task of a Dag in [statecheck] maintenance_dags ({', '.join(sorted(allowed)) or 'none'}), "
            f"found one of {token.task.dag_id!r}; add the Dag to the option."
        )


def require_job_of_runs(job_name: str, *, takes_test_jobs: bool) -> None:
    """
    Require that a job is not one of test runs.

    :param takes_test_jobs: Accept jobs of test runs.
    :raises AccessDeniedError: if it is.
    """
    if is_test_job(job_name) and not takes_test_jobs:
        raise AccessDeniedError(
            f"Expected a job whose name does not start with {TEST_NAMESPACE!r}, found {job_name!r}; rename the job, since test "
            f"runs do not register at this server."
        )


def require_registration(
    token: TokenRecord, request: RegisterAttempt, tasks: TaskDirectory, *, takes_test_jobs: bool
) -> RegisterAttempt:
    """
    Return the registration with the caller as its owner.

    A token that is bound to an attempt can only repeat the registration of this attempt.

    :param takes_test_jobs: Accept jobs of test runs.
    :raises AccessDeniedError: if the job or the task does not belong to the caller.
    """
    require_job_of_runs(request.job_name, takes_test_jobs=takes_test_jobs)
    if token.attempt is None:
        require_task(token)
        _reject_job_of_other_dag(token.task, request.job_name, tasks)
    elif (token.attempt_key, token.job_id) != (request.attempt_key, job_id_of(request.job_name)):
        raise AccessDeniedError(
            "Expected the registration that this token is bound to, found another one; request a new token."
        )
    return replace(request, owner=owner_of(token.task, request.owner))


def owner_of(caller: Caller, claimed: AttemptOwner) -> AttemptOwner:
    """
    Return the claimed owner with the Airflow coordinates of the caller.

    :raises AccessDeniedError: if the claimed owner is another task.
    """
    task = f"{caller.dag_id}/{caller.task_id}"
    if claimed.logical_task != task and not claimed.logical_task.startswith(f"{task}["):
        raise AccessDeniedError(
            f"Expected a registration of task {task!r}, found one of {claimed.logical_task!r}; use the token of that task."
        )
    return replace(claimed, run_id=caller.run_id, airflow=caller.coordinates)


def dags_of(view: JobView) -> tuple[str, ...]:
    """
    Return the Dags whose tasks work on a job; a user who may read all of them may view the job.

    :raises AccessDeniedError: if the Dag of an operator is unknown, see ``job_list.is_of_unknown_dag``.
    """
    if view.is_of_unknown_dag:
        raise AccessDeniedError(
            f"Expected a known Dag for every operator of job {view.job.job_id}, found an operator without one, as after a "
            f"recovery; use 'airflow statecheck checkpoints', or view this page after the tasks have run again."
        )
    return view.dag_ids


def _reject_job_of_other_dag(caller: Caller, job_name: str, tasks: TaskDirectory) -> None:
    # A job that ends with its run is named after its Dag; a Dag must not open the job of another one.
    first, slash, _ = job_name.partition("/")
    if slash and first != caller.dag_id and tasks.is_dag(first):
        raise AccessDeniedError(
            f"Expected a job of Dag {caller.dag_id!r}, found {job_name!r}, whose name starts with the id of Dag {first!r}; "
            f"rename the job."
        )
