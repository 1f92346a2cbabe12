"""
Routes for actions of Airflow users on the state of a job.

A user must be permitted to edit the task instances of every Dag that works on the job. To a user who may not read the
job, it does not exist. Airflow's audit log gets each request of a user who has the permission, with its outcome.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.models.log import Log
from airflow.utils.session import create_session
from fastapi import APIRouter, Body, Depends, Query, Request
from sqlalchemy import update

from airflow_provider_statecheck.api import examples
from airflow_provider_statecheck.api.access import ServicesDep, dags_of
from airflow_provider_statecheck.api.airflow_access import JobsDep, UserJobs
from airflow_provider_statecheck.api.forks import preview_fork, request_fork, require_forkable
from airflow_provider_statecheck.api.requests import MessageRoute, public_text
from airflow_provider_statecheck.api.services import Services
from airflow_provider_statecheck.api.task_routes import JobPath
from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.records import JobAction, OperatorRecord
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import AccessDeniedError, StateCheckError
from airflow_provider_statecheck.maintenance.action_previews import ActionPreview
from airflow_provider_statecheck.maintenance.action_targets import ActionSubject, UserAction
from airflow_provider_statecheck.maintenance.actions import RequestedAction, requested_actions, require_request_key
from airflow_provider_statecheck.metadata.unit_of_work import executing

ACTION_HEADER = "X-Statecheck-Action"
"""Header with the name of the action, which a form or a link on a page of another site cannot send."""

router = APIRouter(prefix="/ui/jobs/{job_id}", tags=["actions"], route_class=MessageRoute)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionMessage(ActionSubject):
    """The confirmed action. The path names the job and the action."""

    request_key: str
    """Idempotency key of the page, 32 hexadecimal digits; a repeated key returns the first request."""
    params: dict[str, Any] | None = None
    """Params of the run of a fork, without the one that names the checkpoint; ``None`` for those of the preview."""


def require_own_page(request: Request) -> None:
    """
    Require a request that a page of this server, or no page at all, has sent.

    :raises AccessDeniedError: if the page of another site may have sent it.
    """
    action = request.path_params["action"]
    if request.headers.get(ACTION_HEADER) != action:
        raise AccessDeniedError(
            f"Expected the header {ACTION_HEADER}: {action}, found another value or none; send it with the request."
        )
    if not _is_from_here(request):
        raise AccessDeniedError(
            "Expected a request from a page of this server, found one from another site; open the page of the job in "
            "Airflow. Behind a proxy that changes the host, set [api] base_url."
        )


def _is_from_here(request: Request) -> bool:
    # The browser writes these headers, and no script can change them. It sends the first one on secure pages only.
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        return site == "same-origin"
    hosts = {request.headers.get("host"), urlsplit(conf.get("api", "base_url", fallback="")).netloc}
    return origin is None or urlsplit(origin).netloc in hosts - {None, ""}


def wanted_action(
    job_id: JobPath,
    action: JobAction,
    operator_id: Annotated[str | None, Query(openapi_examples=examples.OPERATOR_ID)] = None,
    checkpoint_id: Annotated[int | None, Query(openapi_examples=examples.CHECKPOINT_ID)] = None,
    run_key: Annotated[str, Query(openapi_examples=examples.RUN_KEY)] = "",
) -> UserAction:
    """Return the action in the path and the query of a request."""
    return UserAction(
        job_id=JobId(job_id),
        action=action,
        operator_id=None if operator_id is None else OperatorId(operator_id),
        checkpoint_id=checkpoint_id,
        run_key=run_key,
    )


WantedDep = Annotated[UserAction, Depends(wanted_action)]


@router.get("/actions")
def list_actions(job_id: JobPath, jobs: JobsDep) -> tuple[RequestedAction, ...]:
    """Return the requested actions and savepoints of a job, the newest first, to a user who may read the job."""
    return requested_actions(jobs.view(job_id))


@router.get("/{action}/preview")
def preview(wanted: WantedDep, services: ServicesDep, jobs: JobsDep) -> ActionPreview:
    """Return what an action keeps, does again and deletes, without changing anything."""
    require_permitted(jobs, jobs.view(wanted.job_id), wanted)
    return preview_of(services, wanted)


@router.post("/{action}", dependencies=[Depends(require_own_page)])
def request_action(
    job_id: JobPath,
    action: JobAction,
    message: Annotated[ActionMessage, Body(openapi_examples=examples.ACTION)],
    services: ServicesDep,
    jobs: JobsDep,
) -> RequestedAction:
    """Accept a confirmed action. The reply, and later the list of actions, show its progress."""
    require_request_key(message.request_key)
    view = jobs.view(job_id)
    wanted = UserAction(
        job_id=JobId(job_id),
        action=action,
        operator_id=message.operator_id,
        checkpoint_id=message.checkpoint_id,
        run_key=message.run_key,
        request_key=message.request_key,
        requested_by=jobs.user.get_name(),
    )
    require_permitted(jobs, view, wanted)
    known = _known(view, message.request_key)
    if known is not None:
        return known
    entries = AuditEntries(view, wanted)
    try:
        accepted = _accepted(services, wanted, message.params)
    except StateCheckError as error:
        # After an error that may pass, the outcome is unknown, and the page sends the request again.
        if not error.retryable:
            entries.conclude("refused", public_text(error))
        raise
    entries.conclude(accepted.status)
    return accepted


def require_permitted(jobs: UserJobs, view: JobView, wanted: UserAction) -> None:
    """
    Require a user who may edit the job and, for a fork, create runs of its Dag.

    :raises AccessDeniedError: if the user may not.
    """
    jobs.editable.require_all(view)
    if wanted.action is JobAction.FORK:
        require_forkable(view, wanted, jobs.user)


def preview_of(services: Services, wanted: UserAction) -> ActionPreview:
    """Return the effect of an action without changing anything."""
    return preview_fork(services, wanted) if wanted.action is JobAction.FORK else services.actions.preview(wanted)


def _accepted(services: Services, wanted: UserAction, params: dict[str, Any] | None) -> RequestedAction:
    try:
        preview_of(services, wanted)
    except StateCheckError:
        # A copy of the request, sent at the same time, may have been carried out since the view was read.
        known = _known(services.coordinator.describe(wanted.job_id), wanted.request_key)
        if known is None:
            raise
        return known
    if wanted.action is JobAction.FORK:
        return request_fork(services, wanted, params)
    return services.actions.request(wanted)


def _known(view: JobView, request_key: str) -> RequestedAction | None:
    return next((each for each in requested_actions(view) if each.request_key == request_key), None)


class AuditEntries:
    """
    Entries of an action in Airflow's audit log, one for each Dag of the job.

    They are written before the action, as Airflow does for its own routes, so that nothing happens without a record.
    The outcome is added to them.
    """

    def __init__(self, view: JobView, wanted: UserAction) -> None:
        self._details = _details(view, wanted)
        self._ids: list[int] = []
        name = wanted.requested_by
        places = [_task_of(view, wanted, dag_id) for dag_id in sorted(dags_of(view))]
        entries = [
            Log(event=f"statecheck.{wanted.action}", owner=name, owner_display_name=name, **each) for each in places
        ]
        with executing(), create_session(scoped=False) as session:
            for entry in entries:
                entry.extra = json.dumps(self._details)
            session.add_all(entries)
            session.flush()
            self._ids = [entry.id for entry in entries]

    def conclude(self, outcome: str, reason: str = "") -> None:
        """Add the outcome of the action, and the reason of a refusal."""
        details = self._details | {"outcome": outcome} | ({"reason": reason} if reason else {})
        with executing(), create_session(scoped=False) as session:
            session.execute(update(Log).where(Log.id.in_(self._ids)).values(extra=json.dumps(details)))


def _details(view: JobView, wanted: UserAction) -> dict[str, Any]:
    operator = _operator(view, wanted)
    details = {
        "job": view.job.name,
        "job_id": wanted.job_id,
        "operator": None if operator is None else operator.uid,
        "checkpoint_id": wanted.checkpoint_id,
        "before_run": wanted.run_key or None,
        "request_key": wanted.request_key,
    }
    return {name: value for name, value in details.items() if value is not None}


def _task_of(view: JobView, wanted: UserAction, dag_id: str) -> dict[str, Any]:
    operator = _operator(view, wanted)
    attempt = None if operator is None else view.current_attempt(operator)
    task = None if attempt is None else attempt.owner.task
    return {"dag_id": dag_id} if task is None or task.dag_id != dag_id else task._asdict()


def _operator(view: JobView, wanted: UserAction) -> OperatorRecord | None:
    checkpoint = view.checkpoint(wanted.checkpoint_id)
    return view.operator(wanted.operator_id or (None if checkpoint is None else checkpoint.operator_id))
