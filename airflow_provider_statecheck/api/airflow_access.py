"""Access of Airflow users to jobs, by their permissions on the Dags that work on a job."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated

import jwt
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN, ResourceMethod
from airflow.api_fastapi.auth.managers.exceptions import AuthManagerRefreshTokenExpiredException
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, get_user
from airflow.configuration import conf
from airflow.models.crypto import get_fernet
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from cryptography.fernet import InvalidToken
from fastapi import Depends, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from sqlalchemy import select
from sqlalchemy.exc import NoResultFound

from airflow_provider_statecheck.api.access import ServicesDep, TokenAccess, dags_of
from airflow_provider_statecheck.api.checked_rows import JobGrant, bearer
from airflow_provider_statecheck.api.holders import listed_ids
from airflow_provider_statecheck.api.services import Services
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.job_list import LARGEST_JOB_PAGE, JobList, JobSort, JobsPage
from airflow_provider_statecheck.checkpoint.records import JobRecord, TaskCoordinates
from airflow_provider_statecheck.checkpoint.statistics import Refusal, readable_refusals, refusals_of
from airflow_provider_statecheck.checkpoint.store import JobStore, JobView, no_such_job
from airflow_provider_statecheck.exceptions import (
    AccessDeniedError,
    CheckpointNotFoundError,
    CorruptRowError,
    TokenExpiredError,
)
from airflow_provider_statecheck.metadata.unit_of_work import executing

log = logging.getLogger(__name__)


class AirflowAccess:
    """
    Access with tokens of this API, and for Airflow users who may read the task instances of every Dag of the job.

    A user sends the token of a login to Airflow, or the cookie of a session.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._tokens = TokenAccess(services)

    async def require(self, request: Request, job_id: JobId) -> JobGrant:
        """Return the permission of the sender; raises as ``JobAccess.require``."""
        header = await bearer(request)
        # A token of this API has no dot; a JSON web token has two.
        if header is not None and "." not in header.credentials:
            return await self._tokens.require(request, job_id)
        sent = request.cookies.get(COOKIE_NAME_JWT_TOKEN, "") if header is None else header.credentials
        user = await _user_of(request, sent)
        await run_in_threadpool(lambda: UserJobs(self._services.rows, user).view(job_id))
        return JobGrant(caller=f"user {user.get_id()}", expires_at=_expiry_of(sent))


_VERBS: dict[ResourceMethod, str] = {"GET": "read", "PUT": "edit", "POST": "create"}


class PermittedDags:
    """
    Dags on which a user has a permission, such as to read their task instances.

    The auth manager is asked once for each.

    Without an id there is no Dag, and no permission: auth managers take such a question as one about no Dag in
    particular.

    With ``[core] multi_team``, no user has the permission on a Dag that was deleted from Airflow: its team is unknown,
    and the auth manager takes a Dag without a team as one of all teams. Airflow's lists leave out rows of such Dags
    too.

    :param method: ``GET`` for reading, ``PUT`` for editing, ``POST`` for creating.
    :param entity: What of the Dag, by default its task instances.
    """

    def __init__(
        self,
        user: BaseUser,
        method: ResourceMethod = "GET",
        entity: DagAccessEntity = DagAccessEntity.TASK_INSTANCE,
    ) -> None:
        self._user = user
        self._method = method
        self._entity = entity
        self._known: dict[str, bool] = {}

    def require_all(self, view: JobView) -> None:
        """
        Require the permission on every Dag that works on a job.

        :raises AccessDeniedError: if the user lacks the permission on one of them, or if the Dag of an operator is
            unknown.
        """
        self._require(dags_of(view))

    def permits_all(self, view: JobView) -> bool:
        """Return whether the user has the permission on every Dag that works on a job, and all of them are known."""
        try:
            self.require_all(view)
        except AccessDeniedError:
            return False
        return True

    def require(self, dag_id: str) -> None:
        """
        Require the permission on a Dag.

        :raises AccessDeniedError: if the user lacks it.
        """
        self._require((dag_id,))

    def among(self, dag_ids: Collection[str]) -> frozenset[str]:
        """Return those of some Dags on which the user has the permission; the teams of all are read at once."""
        unknown = [dag_id for dag_id in dag_ids if dag_id not in self._known]
        teams = DagModel.get_dag_id_to_team_name_mapping(unknown) if unknown else {}
        deleted = _deleted_of_a_team(unknown)
        for dag_id in unknown:
            is_there = bool(dag_id) and dag_id not in deleted
            self._known[dag_id] = is_there and self._is_permitted(dag_id, teams.get(dag_id))
        return frozenset(dag_id for dag_id in dag_ids if self._known[dag_id])

    def _require(self, dag_ids: Collection[str]) -> None:
        permitted = self.among(dag_ids)
        refused = next((dag_id for dag_id in dag_ids if dag_id not in permitted), None)
        if refused is not None:
            entities = self._entity.value.lower().replace("_", " ")
            raise AccessDeniedError(
                f"Expected a user who may {_VERBS[self._method]} {entities}s of Dag {refused!r}, found one without "
                "this permission; grant it or use another user."
            )

    def _is_permitted(self, dag_id: str, team: str | None) -> bool:
        dag = DagDetails(id=dag_id, team_name=team)
        return get_auth_manager().is_authorized_dag(
            method=self._method, access_entity=self._entity, details=dag, user=self._user
        )


def _deleted_of_a_team(dag_ids: Collection[str]) -> frozenset[str]:
    """Return those of some Dags that are deleted; empty without teams, where the permission depends on the id alone."""
    if not dag_ids or not conf.getboolean("core", "multi_team"):
        return frozenset()
    with create_session() as session:
        return frozenset(dag_ids).difference(
            session.scalars(select(DagModel.dag_id).where(DagModel.dag_id.in_(dag_ids)))
        )


class UserJobs:
    """
    Jobs that a user may read, by the permission on every Dag that works on them.

    For this user, other jobs do not exist.
    """

    def __init__(self, rows: JobStore, user: BaseUser) -> None:
        self._rows = rows
        self.user = user
        self.readable = PermittedDags(user)
        self.editable = PermittedDags(user, "PUT")

    def view(self, job_id: str) -> JobView:
        """
        Return the rows of a job.

        :raises CheckpointNotFoundError: if there is no such job, or if the user may not read it, with the same text.
        """
        try:
            view = self._rows.describe(JobId(job_id))
        except CorruptRowError:
            if self._lists(JobId(job_id)):
                raise
            raise no_such_job(JobId(job_id)) from None
        if not self.readable.permits_all(view):
            raise no_such_job(JobId(job_id))
        return readable_refusals(view, lambda dag_id: bool(self.readable.among([dag_id])))

    def require_editable(self, dag_id: str) -> None:
        """
        Require the permission to edit the task instances of a Dag.

        :raises AccessDeniedError: if the user lacks it.
        """
        self.editable.require(dag_id)

    def may_work_on(self, view: JobView, dag_id: str) -> bool:
        """
        Return whether the user may work on a job with a task of a Dag.

        A job of an unknown Dag, as after a recovery, may be of any Dag, unless it is named after that of the task.
        """
        if not view.is_of_unknown_dag:
            return self.editable.permits_all(view)
        wanted = {*view.dag_ids, dag_id} if view.job.name.startswith(f"{dag_id}/") else _all_dags()
        return self.editable.among(wanted) == wanted

    def overviews(self, page: JobsPage) -> JobList:
        """Return those jobs of a page of the list that the user may read; other jobs are not counted either."""
        readable = self.readable.among(self._rows.dag_ids(beside=page.dag_id))
        return self._rows.job_overviews(replace(page, readable_dag_ids=readable))

    def of_run(self, dag_id: str, run_id: str) -> tuple[list[JobView], list[CorruptRowError]]:
        """Return the jobs that the tasks of a Dag run have worked on, and the errors of those that cannot be read."""
        views, unreadable = [], []
        for job_id in self._rows.jobs_of_run(dag_id, run_id):
            try:
                views.append(self.view(job_id))
            except CheckpointNotFoundError:
                continue  # not readable for the user, or removed in the meantime
            except CorruptRowError as error:
                unreadable.append(error)
        return views, unreadable

    def refusals(self, coordinates: TaskCoordinates) -> list[tuple[JobRecord, Refusal]]:
        """Return the refusals of a task instance by the most recently active jobs of its Dag that the user may read."""
        page = JobsPage(
            limit=_JOBS_WITH_REFUSALS, sort=JobSort.COMPLETED_AT, descending=True, dag_id=coordinates.dag_id
        )
        found = []
        for overview in self.overviews(page).jobs:
            with suppress(CheckpointNotFoundError, CorruptRowError):
                view = self.view(overview.job_id)
                found += [
                    (view.job, each) for each in refusals_of(view) if TaskCoordinates.of(each.airflow) == coordinates
                ]
        return found

    def _lists(self, job_id: JobId) -> bool:
        """Return whether a job whose rows cannot be read is in the user's list of jobs, which shows the error."""
        page = JobsPage(limit=LARGEST_JOB_PAGE, with_test_jobs=True)
        return job_id in listed_ids(self.overviews, page)


_JOBS_WITH_REFUSALS = 20
"""A job with a fixed name, which alone refuses a run for its order, is among the active ones of its Dag."""


def _all_dags() -> frozenset[str]:
    with executing(), create_session() as session:
        return frozenset(session.scalars(select(DagModel.dag_id)))


def login_of(user: BaseUser) -> str:
    """
    Return a user as a token keeps it, encrypted like the passwords of connections: the auth manager may add secrets.
    """
    claims = json.dumps(get_auth_manager().serialize_user(user))
    return get_fernet().encrypt(claims.encode()).decode()


def jobs_of_login(login: str, rows: JobStore) -> UserJobs:
    """
    Return the jobs of the user who obtained a token.

    :param login: The result of :func:`login_of`.
    :raises AccessDeniedError: if the auth manager does not know the user any more.
    """
    try:
        claims = json.loads(get_fernet().decrypt(login.encode()))
        with executing():
            user = get_auth_manager().deserialize_user(claims)
            user = get_auth_manager().refresh_user(user=user) or user
    except (InvalidToken, ValueError, LookupError, TypeError, NoResultFound, AuthManagerRefreshTokenExpiredException):
        log.warning("The user who obtained a token cannot be determined any more.", exc_info=True)
        raise AccessDeniedError(
            "Expected the token of a user who can still log in, found one of a user whom Airflow's auth manager does "
            "not know, or whose login has expired; request a new token."
        ) from None
    return UserJobs(rows, user)


def user_jobs(services: ServicesDep, user: GetUserDep) -> UserJobs:
    """Return the jobs of the user who sends a request."""
    return UserJobs(services.rows, user)


JobsDep = Annotated[UserJobs, Depends(user_jobs)]


async def _user_of(request: Request, sent: str) -> BaseUser:
    try:
        return await get_user(request, None, await bearer(request))
    except HTTPException as refusal:
        if not sent:
            raise AccessDeniedError(
                "Expected a token in the header Authorization or a session of Airflow, found none; request a token or "
                "log in first."
            ) from None
        kind = TokenExpiredError if _has_expired(sent) else AccessDeniedError
        raise kind(
            f"Expected the token of an Airflow user, found one that Airflow refuses: {refusal.detail}; log in again."
        ) from None


def _has_expired(token: str) -> bool:
    expiry = _expiry_of(token)
    return expiry is not None and expiry <= datetime.now(UTC)


def _expiry_of(token: str) -> datetime | None:
    # Airflow has verified the token; an auth manager may use tokens of another form.
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
        return datetime.fromtimestamp(claims["exp"], UTC)
    except (jwt.InvalidTokenError, KeyError, TypeError, ValueError, OverflowError):
        return None
