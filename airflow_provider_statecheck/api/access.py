"""Who may call what: the rules between a token and a route."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from airflow_provider_statecheck.api.services import Services, TaskDirectory
from airflow_provider_statecheck.checkpoint.ids import TEST_NAMESPACE, JobId, is_test_job, job_id_of
from airflow_provider_statecheck.checkpoint.messages import AttemptRef, RegisterAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptOwner
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import AccessDeniedError
from airflow_provider_statecheck.metadata.token_store import Caller, TokenRecord

_bearer = HTTPBearer(auto_error=False, description="A token given by this API.")


def services_of(request: Request) -> Services:
    """Return what the app was made with."""
    services: Services = request.app.state.services
    return services


ServicesDep = Annotated[Services, Depends(services_of)]


def takes_test_jobs(request: Request) -> bool:
    """Tell whether the app serves a test run."""
    return bool(request.app.state.takes_test_jobs)


TakesTestJobsDep = Annotated[bool, Depends(takes_test_jobs)]


async def check_token(request: Request) -> None:
    """
    Look up what the caller's token means, before anything of the caller's message is read.

    :raises AccessDeniedError: if there is none or it is not valid.
    """
    header = await _bearer(request)
    if header is None or not header.credentials:
        raise AccessDeniedError("Expected a token in the header Authorization, found none; ask for one first.")
    request.state.token = await run_in_threadpool(services_of(request).tokens.check, header.credentials)


def checked_token(request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]) -> TokenRecord:
    """Return what the caller's token means, as :func:`check_token` found it."""
    token: TokenRecord = request.state.token
    return token


TokenDep = Annotated[TokenRecord, Depends(checked_token)]


def require_attempt(token: TokenRecord, attempt: AttemptRef | None) -> None:
    """
    Refuse a call for any attempt but the token's own.

    :raises AccessDeniedError: otherwise.
    """
    if attempt is None or token.attempt != attempt:
        raise AccessDeniedError("Expected the token of the attempt that is spoken for, found another's.")


def require_job(token: TokenRecord, job_id: JobId) -> None:
    """
    Refuse any job but the token's own; a task that has registered nothing may read all.

    :raises AccessDeniedError: otherwise.
    """
    if token.job_id not in (None, job_id):
        raise AccessDeniedError(f"Expected the token of job {job_id}, found that of job {token.job_id}.")


def require_task(token: TokenRecord) -> None:
    """
    Refuse what only a task may do that has registered nothing with its token.

    :raises AccessDeniedError: otherwise.
    """
    if token.is_read_only or token.job_id is not None:
        raise AccessDeniedError("Expected the token of a task, found one that is bound to a job; ask for another.")


def require_maintenance(token: TokenRecord, services: Services) -> None:
    """
    Refuse what only a task of a maintenance Dag may do.

    :raises AccessDeniedError: for the token of any other task, or one that is bound to a job.
    """
    require_task(token)
    allowed = services.maintenance_dags()
    if token.caller.dag_id not in allowed:
        raise AccessDeniedError(
            f"Expected a task of a Dag that [statecheck] maintenance_dags names ({', '.join(sorted(allowed)) or 'none'}), "
            f"found one of {token.caller.dag_id!r}."
        )


def require_registration(
    token: TokenRecord, request: RegisterAttempt, tasks: TaskDirectory, *, takes_test_jobs: bool
) -> RegisterAttempt:
    """
    Return a registration in the caller's own name.

    A token that is bound to an attempt may only repeat that attempt's registration.

    :param takes_test_jobs: Whether it may be one of a test run.
    :raises AccessDeniedError: for a job or task that is not the caller's.
    """
    if is_test_job(request.job_name) and not takes_test_jobs:
        raise AccessDeniedError(
            f"Expected a job whose name does not begin with {TEST_NAMESPACE!r}, found {request.job_name!r}; a test run does "
            f"not register here, and a real job needs another name."
        )
    if token.attempt is None:
        require_task(token)
        _refuse_foreign_job(token.caller, request.job_name, tasks)
    elif (token.attempt_key, token.job_id) != (request.attempt_key, job_id_of(request.job_name)):
        raise AccessDeniedError(
            "Expected the registration that this token is bound to, found another; ask for a token."
        )
    return replace(request, owner=owner_of(token.caller, request.owner))


def owner_of(caller: Caller, claimed: AttemptOwner) -> AttemptOwner:
    """
    Return an owner whose Airflow coordinates are those of the caller, whatever it says.

    :raises AccessDeniedError: if it names another task.
    """
    task = f"{caller.dag_id}/{caller.task_id}"
    if claimed.logical_task != task and not claimed.logical_task.startswith(f"{task}["):
        raise AccessDeniedError(f"Expected a registration of task {task!r}, found one of {claimed.logical_task!r}.")
    return replace(claimed, run_id=caller.run_id, airflow=caller.coordinates)


def dags_of(view: JobView) -> set[str]:
    """
    Return the Dags whose tasks work on a job; who may read all of them may see it.

    The attempts of a script or of a recovered job name no task. An operator that has no others may be any Dag's: it
    counts as that of the Dag after which the job is named, if this Dag works on the job itself, for the coordinator lets
    no other one in then. The name alone proves nothing.

    :raises AccessDeniedError: if it cannot be told whose an operator is.
    """
    known = [(attempt.operator_id, dict(attempt.owner.airflow).get("dag_id", "")) for attempt in view.attempts]
    dags = {dag_id for _, dag_id in known if dag_id}
    is_named_after_one = any(view.job.name.startswith(f"{dag_id}/") for dag_id in dags)
    unknown = {operator.operator_id for operator in view.operators} - {each for each, dag_id in known if dag_id}
    if not dags or (unknown and not is_named_after_one):
        raise AccessDeniedError(
            f"Expected tasks of Airflow to work on every operator of job {view.job.job_id}, found one of which no Dag is "
            f"known, as after a recovery; 'airflow statecheck checkpoints' shows the job, and so does this page once its "
            f"tasks have run again."
        )
    return dags


def _refuse_foreign_job(caller: Caller, job_name: str, tasks: TaskDirectory) -> None:
    # A job that lives with a run is named after its Dag; a Dag must not open another's.
    first, slash, _ = job_name.partition("/")
    if slash and first != caller.dag_id and tasks.is_dag(first):
        raise AccessDeniedError(
            f"Expected a job of Dag {caller.dag_id!r}, found {job_name!r}, which by its name belongs to Dag {first!r}; "
            f"name the job otherwise."
        )
