"""
Who may call what: authorization by the token of the caller.

Calls with a message have a table of rules, which :func:`permitted` applies. Reads of one job are decided by
``job_access``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool

from airflow_provider_statecheck.api.checked_rows import Checked, JobGrant, bearer_token
from airflow_provider_statecheck.api.holders import TaskDirectory, job_of
from airflow_provider_statecheck.api.services import Services
from airflow_provider_statecheck.checkpoint.aligned.rows import PutHandle, TakeLeadership
from airflow_provider_statecheck.checkpoint.ids import (
    TEST_NAMESPACE,
    JobId,
    is_test_job,
    job_id_of,
)
from airflow_provider_statecheck.checkpoint.messages import RequestSavepoint
from airflow_provider_statecheck.checkpoint.records import AttemptOwner
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import AccessDeniedError, CheckpointNotFoundError
from airflow_provider_statecheck.maintenance.job_restore import RestoreJob
from airflow_provider_statecheck.maintenance.savepoints import jobs_with_savepoint
from airflow_provider_statecheck.metadata.tables import Caller, TokenRecord, UserCaller
from airflow_provider_statecheck.storage.uris import normalise_pointer, normalise_savepoint_dir, redact


def services_of(request: Request) -> Services:
    """Return the services of the app."""
    services: Services = request.app.state.services
    return services


ServicesDep = Annotated[Services, Depends(services_of)]


async def _check_token(request: Request) -> TokenRecord:
    return await run_in_threadpool(services_of(request).valid_token, await bearer_token(request))


TokenDep = Annotated[TokenRecord, Depends(Checked(_check_token))]


class TokenAccess:
    """
    Access with tokens of this API.

    :param services: The tokens, and what their holders may do now.
    """

    def __init__(self, services: Services) -> None:
        self._services = services

    async def require(self, request: Request, job_id: JobId) -> JobGrant:
        """Return the permission of the sender; raises as ``JobAccess.require``."""
        token = await run_in_threadpool(self._readable, await bearer_token(request), job_id)
        return JobGrant(caller=_caller_of(token), expires_at=token.expires_at)

    def _readable(self, text: str, job_id: JobId) -> TokenRecord:
        token = self._services.valid_token(text)
        self._services.holders.require_readable(token, job_id)
        return token


def _caller_of(token: TokenRecord) -> str:
    caller = token.caller
    return f"user {caller.user}" if isinstance(caller, UserCaller) else f"task {caller.pairs}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The services and the token of a call of the API."""

    services: Services
    token: TokenRecord
    takes_test_jobs: bool


async def _call(request: Request, services: ServicesDep, token: TokenDep) -> Call:
    return Call(services=services, token=token, takes_test_jobs=request.app.state.takes_test_jobs)


CallDep = Annotated[Call, Depends(_call)]


def permitted(call: Call, path: str, message: Any) -> Any:
    """
    Return a message as its caller may send it, with what the server knows of the caller.

    :param path: Path of the call, whose folder or whole has a rule in :data:`_WHO_MAY`.
    :raises AccessDeniedError: if the caller may not send it.
    """
    rule = _WHO_MAY.get(path) or _WHO_MAY[path.partition("/")[0]]
    allowed = rule(call, message)
    token, job_id = call.token, job_of(allowed)
    # What a task has proved holds for its attempt. The permissions of a user, and the Dags of the job, may change.
    if job_id is not None and (token.job_id is None or token.task.login):
        knows_job = token.job_id is not None or path in _OF_NEW_JOBS
        call.services.holders.require_workable(token.task, job_id, knows_job=knows_job)
    return _normalised(allowed)


def require_task(token: TokenRecord) -> None:
    """
    Require the token of a task that is not yet bound to a job.

    :raises AccessDeniedError: if the token is bound to a job.
    """
    if token.is_read_only or token.job_id is not None:
        raise AccessDeniedError("Expected the token of a task, found one that is bound to a job; request a new token.")


def _attempt(call: Call, message: Any) -> Any:
    if call.token.attempt != message.attempt:
        raise AccessDeniedError(
            "Expected the token of the attempt in the message, found another token; use the token that registered it."
        )
    if message.attempt.is_of_job:
        raise AccessDeniedError(
            "Expected an attempt of a stage, found a leader of aligned checkpoints; make the calls of a coordinator."
        )
    return message


def _registering_task(call: Call, message: Any) -> Any:
    # A token that is bound to an attempt can only repeat the registration of this attempt.
    token = call.token
    _require_job_of_runs(call, message.job_name)
    if token.attempt is None:
        require_task(token)
        _reject_job_of_other_dag(token.task, message.job_name, call.services.tasks)
    elif (token.attempt_key, token.job_id) != (message.attempt_key, job_id_of(message.job_name)):
        raise AccessDeniedError(
            "Expected the registration that this token is bound to, found another one; request a new token."
        )
    return replace(message, owner=_owner_of(token.task, message.owner))


def _adopting_task(call: Call, message: Any) -> Any:
    if call.token.attempt != message.attempt:
        require_task(call.token)
    return replace(message, owner=_owner_of(call.token.task, message.owner))


def _maintenance_task(call: Call, message: Any) -> Any:
    require_task(call.token)
    if not call.services.holders.is_of_maintenance(call.token.task):
        allowed, dag_id = call.services.maintenance_dags(), call.token.task.dag_id
        raise AccessDeniedError(
            f"Expected a task of a Dag in [statecheck] maintenance_dags ({', '.join(sorted(allowed)) or 'none'}), "
            f"found one of {dag_id!r}; add the Dag to the option."
        )
    # The permission of the user was checked at the request that request_key names; a bare name has no such check.
    if getattr(message, "is_named", False):
        raise AccessDeniedError(
            "Expected a job to remove because of its age or on the request of a user, found one to remove by name; "
            "remove it on its page, or use 'airflow statecheck prune JOB'."
        )
    return message


def _disposing_task(call: Call, message: Any) -> Any:
    # The message names a savepoint, whose rows may be those of another job than it says.
    _maintenance_task(call, message)
    concerned = jobs_with_savepoint(call.services.rows, message.pointer, message.job_id)
    for job_id in (each for each in concerned if each != message.job_id):
        try:
            call.services.holders.require_workable(call.token.task, job_id, knows_job=False)
        except (AccessDeniedError, CheckpointNotFoundError):
            raise AccessDeniedError(
                "Expected a savepoint of jobs whose Dags the caller may all edit, found that "
                f"{redact(message.pointer)} belongs to another job, or is restored by one; nothing was changed. Name "
                "another savepoint, or grant the permission."
            ) from None
    return message


def _restoring_task(call: Call, message: RestoreJob) -> RestoreJob:
    _maintenance_task(call, message)
    return replace(message, requested_by=_named(call.token.task))


def _requesting_task(call: Call, message: RequestSavepoint) -> RequestSavepoint:
    # A task may name any requester, so the task itself is named too.
    _maintenance_task(call, message)
    told = (message.requested_by, f"({_named(call.token.task)})")
    return replace(message, requested_by=" ".join(filter(None, told)))


def _named(task: Caller) -> str:
    return f"task {task.dag_id}.{task.task_id} of run {task.run_id}"


def _new_leader(call: Call, message: TakeLeadership) -> TakeLeadership:
    if not call.services.holders.is_of_maintenance(call.token.task):
        led: TakeLeadership = _registering_task(call, message)
        return led
    _require_job_of_runs(call, message.job_name)
    # A task of a maintenance Dag leads one job after another, so that none of them is an attempt of the task.
    return replace(message, owner=replace(message.owner, airflow=()))


def _leader(call: Call, message: Any) -> Any:
    if call.token.attempt != message.leader:
        _maintenance_task(call, message)
    if not message.leader.is_of_job:
        raise AccessDeniedError(
            "Expected a leader of aligned checkpoints, found an attempt of a stage; the stage needs the token of the "
            "attempt."
        )
    return message


_WHO_MAY: dict[str, Callable[[Call, Any], Any]] = {
    "attempts": _attempt,
    "attempts/register": _registering_task,
    "attempts/adopt": _adopting_task,
    "maintenance": _maintenance_task,
    "savepoints": _maintenance_task,
    "savepoints/dispose": _disposing_task,
    "savepoints/request": _requesting_task,
    "savepoints/restore": _restoring_task,
    "aligned": _leader,
    "aligned/lead": _new_leader,
}
"""
Who may send the messages of a folder, or of a path in it. Reads by a path need a ``JobAccess`` or the token of a task.
"""
_OF_NEW_JOBS = ("attempts/register", "aligned/lead")
"""Paths of messages that may be the first ones of their jobs."""


def _normalised(message: Any) -> Any:
    # The location of a handle is that of its row, which may be a checkpoint directory with another form.
    location = None if isinstance(message, PutHandle) else getattr(message, "location", None)
    parents = {name: getattr(message, name, None) for name in ("savepoint_dir", "target")}
    given = {name: normalise_savepoint_dir(each) for name, each in parents.items() if each is not None}
    given |= {} if location is None else {"location": normalise_pointer(location)}
    return replace(message, **given) if given else message


def _require_job_of_runs(call: Call, job_name: str) -> None:
    if is_test_job(job_name) and not call.takes_test_jobs:
        raise AccessDeniedError(
            f"Expected a job whose name does not start with {TEST_NAMESPACE!r}, found {job_name!r}; rename the job, "
            "since test runs do not register at this server."
        )


def _owner_of(caller: Caller, claimed: AttemptOwner) -> AttemptOwner:
    task = f"{caller.dag_id}/{caller.task_id}"
    if claimed.logical_task != task and not claimed.logical_task.startswith(f"{task}["):
        raise AccessDeniedError(
            f"Expected a registration of task {task!r}, found one of {claimed.logical_task!r}; use the token of that "
            "task."
        )
    return replace(claimed, run_id=caller.run_id, airflow=caller.pairs)


def dags_of(view: JobView) -> tuple[str, ...]:
    """
    Return the Dags whose tasks work on a job; a user who may read all of them may view the job.

    :raises AccessDeniedError: if the Dag of an operator is unknown, see ``job_list.is_of_unknown_dag``.
    """
    if view.is_of_unknown_dag:
        raise AccessDeniedError(
            f"Expected a known Dag for every operator of job {view.job.job_id}, found an operator without one, as "
            "after a recovery; use 'airflow statecheck checkpoints', or view this page after the tasks have run again."
        )
    return view.dag_ids


def _reject_job_of_other_dag(caller: Caller, job_name: str, tasks: TaskDirectory) -> None:
    # A job that ends with its run is named after its Dag; a Dag must not open the job of another one.
    first, slash, _ = job_name.partition("/")
    if slash and first != caller.dag_id and tasks.is_dag(first):
        raise AccessDeniedError(
            f"Expected a job of Dag {caller.dag_id!r}, found {job_name!r}, whose name starts with the id of Dag "
            f"{first!r}; rename the job."
        )
