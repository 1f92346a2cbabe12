"""
Choice of gateways, direct or HTTP, and the credentials of a task.

A process with access to Airflow's database calls the coordinator, maintenance and savepoints in process. A task calls
them over HTTP and authenticates with a challenge (:class:`TaskCredentials`) or with a login
(:class:`LoginCredentials`).
"""

from __future__ import annotations

import asyncio
import difflib
import os
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from airflow_provider_statecheck.checkpoint.ids import (
    given_job_id,
    job_id_of,
)
from airflow_provider_statecheck.exceptions import (
    AccessDeniedError,
    CheckpointNotFoundError,
    CoordinatorError,
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    StateCheckError,
)
from airflow_provider_statecheck.gateway.http import HttpCalls, HttpClient
from airflow_provider_statecheck.gateway.verbs import CHALLENGE_KEY, challenge_of
from airflow_provider_statecheck.hooks.connection import (
    DEFAULT_CONN_ID,
    DEFAULT_TIMEOUT_SECONDS,
    CoordinatorAddress,
    coordinator_address,
    guarded_storage_opener,
    storage_opener,
)

if TYPE_CHECKING:
    from airflow_provider_statecheck.api.services import Services
    from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
    from airflow_provider_statecheck.checkpoint.ids import JobId
    from airflow_provider_statecheck.checkpoint.store import JobReads, JobStore, JobView
    from airflow_provider_statecheck.gateway.http import Credentials, HttpGateway
    from airflow_provider_statecheck.gateway.verbs import StageGateway, Verb
    from airflow_provider_statecheck.maintenance.job_maintenance import JobMaintenance
    from airflow_provider_statecheck.maintenance.job_restore import JobRestoring
    from airflow_provider_statecheck.maintenance.job_savepoints import WholeJobSavepoints
    from airflow_provider_statecheck.maintenance.recover import JobRecovery
    from airflow_provider_statecheck.maintenance.rewind import JobRewinding
    from airflow_provider_statecheck.maintenance.savepoints import JobSavepoints
    from airflow_provider_statecheck.metadata.provider_tables import ProviderTables
    from airflow_provider_statecheck.queryable.reads import StateReads


Gateway = TypeVar("Gateway")

RENEWAL_SECONDS = 300.0
"""Interval between renewals of a reading token, a third of its lifetime."""

_BLOCKED = "airflow-db-not-allowed"
_SUGGESTIONS = 3
_SEARCHED_JOBS = 10_000
"""The most recently active jobs, whose names may contain the text."""
_COMPARED_JOBS = 1_000
"""Those of them that begin most like the text; the comparison of more names would take seconds."""
_CHALLENGE_LIFETIME = timedelta(minutes=5)


def is_orm_open() -> bool:
    """Return whether this process may use Airflow's database, which Airflow blocks in tasks under a scheduler."""
    return not os.environ.get("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "").startswith(_BLOCKED)


def is_test_run() -> bool:
    """Return whether a task runs here with access to Airflow's database, as in ``dag.test``; its jobs are test jobs."""
    from airflow.sdk import get_current_context

    if not is_orm_open():
        return False
    try:
        get_current_context()
    except RuntimeError:
        return False
    return True


def airflow_gateway(conn_id: str = DEFAULT_CONN_ID) -> StageGateway:
    """
    Return a gateway to the coordinator: in process if Airflow's database is accessible, otherwise over HTTP.

    :param conn_id: Connection to the server, used over HTTP only.
    :raises EnvironmentNotReadyError: if the database is not accessible and no task is running.
    """
    return in_process_gateway() if is_orm_open() else over_http(task_gateway(conn_id))


def over_http(gateway: Gateway) -> Gateway:
    """Return a gateway that retries calls during short outages of the api-server."""
    from airflow_provider_statecheck.gateway.verbs import OUTAGE_PAUSES_SECONDS, retrying

    return retrying(gateway, OUTAGE_PAUSES_SECONDS)


def task_gateway(conn_id: str = DEFAULT_CONN_ID) -> HttpGateway:
    """
    Return an HTTP gateway with the credentials of the running task.

    :param conn_id: Connection to the server.
    :raises EnvironmentNotReadyError: if no task is running.
    """
    from airflow_provider_statecheck.gateway.http import HttpGateway

    address = coordinator_address(conn_id)
    client = address.open()
    return HttpGateway(client, task_credentials(client, address))


def task_credentials(client: HttpClient, address: CoordinatorAddress) -> Credentials:
    """
    Return the credentials of the running task: a login if the connection has one, otherwise a challenge.

    :raises EnvironmentNotReadyError: if no task is running.
    """
    ti = running_context()["ti"]
    if address.login is None:
        return TaskCredentials(client, ti.id)
    task = {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": ti.task_id, "map_index": ti.map_index}
    return LoginCredentials(client, task, address.login, address.password or "")


def state_reads(conn_id: str = DEFAULT_CONN_ID) -> StateReads:
    """
    Return reads of queryable state: in process if Airflow's database is accessible, otherwise over HTTP.

    :param conn_id: Connection to the server, used over HTTP only. In process, ``[statecheck] storage_conn_id`` names
        the connection with the credentials of the checkpoint storage.
    :raises EnvironmentNotReadyError: if the database is not accessible and no task is running.
    """
    if is_orm_open():
        from airflow_provider_statecheck.queryable.reads import LocalStateClient

        return LocalStateClient(airflow_gateway(conn_id), storage_opener())
    from airflow_provider_statecheck.queryable.client import QueryableStateClient

    address = coordinator_address(conn_id)
    pool = address.open_pool()
    credentials = task_credentials(HttpClient(address.url, pool), address)
    return QueryableStateClient(address.url, credentials.obtain, client=pool)


def running_context() -> Mapping[str, Any]:
    """
    Return the context of the running task.

    :raises EnvironmentNotReadyError: if no task is running.
    """
    from airflow.sdk import get_current_context

    try:
        return cast("Mapping[str, Any]", get_current_context())
    except RuntimeError as error:
        or_from = "" if is_orm_open() else ", or from a command with access to Airflow's database"
        raise EnvironmentNotReadyError(
            f"Expected a running task, found none; call the coordinator from a task{or_from}."
        ) from error


def in_process_gateway() -> StageGateway:
    """Return a gateway on Airflow's database, which this process can reach."""
    from airflow import settings

    from airflow_provider_statecheck.api.airflow_dags import AirflowDags
    from airflow_provider_statecheck.api.airflow_services import AirflowTaskLiveness
    from airflow_provider_statecheck.api.metrics import airflow_metrics
    from airflow_provider_statecheck.gateway.in_process import gateway_on_engine

    dags = AirflowDags(has_files=True)
    return gateway_on_engine(settings.get_engine(), AirflowTaskLiveness(), airflow_metrics(), dags)


class TaskCredentials:
    """
    Challenge authentication of a task, which needs no secret on the worker.

    The task writes a challenge through its supervisor, to its state store or its rendered fields, and sends the
    matching secret to the coordinator, which reads the challenge from Airflow's database.

    :param ti_id: Id of the running task instance; each try has a new id.
    """

    def __init__(self, client: HttpClient, ti_id: Any) -> None:
        self._client = client
        self._ti_id = ti_id

    def obtain(self) -> str:
        """
        Return a token for this task.

        :raises AccessDeniedError: if the coordinator rejected the challenge.
        :raises CoordinatorError: if the supervisor of the task has ended.
        """
        secret = secrets.token_urlsafe(32)
        _announce(self._ti_id, challenge_of(secret))
        reply = self._client.post("token", {"ti_id": str(self._ti_id), "secret": secret})
        return _masked(reply["token"])


class LoginCredentials:
    """
    Login of an Airflow user who may edit the task, for deployments without challenge authentication.

    :param task: Dag id, run id, task id and map index of the task instance.
    """

    def __init__(self, client: HttpClient, task: Mapping[str, Any], login: str, password: str) -> None:
        self._client = client
        self._task = dict(task)
        self._login = login
        self._password = password

    def obtain(self) -> str:
        """
        Return a token for this task.

        :raises AccessDeniedError: if the user is unknown or may not edit the task.
        """
        user = self._client.log_in(self._login, self._password)
        return _masked(self._client.post("token/login", self._task, user)["token"])

    def __repr__(self) -> str:
        return f"LoginCredentials({self._login!r}, ***)"


def _announce(ti_id: Any, challenge: str) -> None:
    from airflow.sdk.execution_time import task_runner

    try:
        task_runner.SUPERVISOR_COMMS.send(_announcement(ti_id, challenge))
    except (OSError, EOFError) as error:
        raise CoordinatorError(
            "Expected the supervisor of the task, which vouches for it to the coordinator, found that it has ended; "
            "Airflow starts the next try when the task's heartbeat times out."
        ) from error


def _announcement(ti_id: Any, challenge: str) -> Any:
    try:
        from airflow.sdk.execution_time.comms import SetTaskStateStore
    except ImportError:
        return _rendered_announcement(challenge)
    # Sent as a raw message because a custom state store backend of the worker would replace the value by a reference.
    expires_at = datetime.now(UTC) + _CHALLENGE_LIFETIME
    return SetTaskStateStore(ti_id=ti_id, key=CHALLENGE_KEY, value=challenge, expires_at=expires_at)


def _rendered_announcement(challenge: str) -> Any:
    """Return the rendered fields of the running task with a challenge; Airflow 3.2 has no state store of tasks."""
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import SetRenderedFields

    # The message replaces all fields.
    fields = task_runner._serialize_rendered_fields(running_context()["ti"].task)
    return SetRenderedFields(rendered_fields=fields | {CHALLENGE_KEY: challenge})


def _masked(token: Any) -> str:
    from airflow.sdk.log import mask_secret

    mask_secret(token)
    return str(token)


class JobReader(Protocol):
    """Asynchronous reader of jobs."""

    async def describe(self, job_id: JobId) -> JobView:
        """Return the current view of a job."""

    async def renew(self) -> None:
        """Renew the reading token; call this every ``RENEWAL_SECONDS``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingAccess:
    """URL of a server, and a token that allows reading one job."""

    url: str
    token: str = field(repr=False)
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """Timeout of a request."""


def reading_access(job_id: JobId, conn_id: str = DEFAULT_CONN_ID) -> ReadingAccess | None:
    """
    Return access to a job for another process, ``None`` if Airflow's database is accessible and no token is needed.

    :param conn_id: Connection to the server.
    :raises EnvironmentNotReadyError: if no task is running.
    """
    if is_orm_open():
        return None
    from airflow.sdk.log import mask_secret

    address, gateway = coordinator_address(conn_id), task_gateway(conn_id)
    token = over_http(gateway).reading_token(job_id)
    mask_secret(token)
    return ReadingAccess(url=address.url, token=token, timeout_seconds=address.timeout_seconds)


@asynccontextmanager
async def job_reader(access: ReadingAccess | None) -> AsyncIterator[JobReader]:
    """
    Open a reader of jobs.

    :param access: Result of :func:`reading_access`; ``None`` calls the coordinator in a thread of this process.
    :raises EnvironmentNotReadyError: if ``access`` is ``None`` and Airflow's database is not accessible.
    """
    if access is None:
        yield _InProcessReader(await asyncio.to_thread(airflow_gateway))
        return
    from airflow_provider_statecheck.gateway.http import AsyncJobReader

    await mask_in_triggerer(access.token)
    address = CoordinatorAddress(url=access.url, timeout_seconds=access.timeout_seconds)
    async with await asyncio.to_thread(address.open_async) as client:
        yield AsyncJobReader(access.url, access.token, client)


async def mask_in_triggerer(token: str) -> None:
    """Mask a token in the logs of a trigger."""
    from airflow.sdk import log as masking

    # In Airflow 3.2, mask_secret() sends nothing to the supervisor from a trigger.
    if hasattr(masking, "amask_secret"):
        await masking.amask_secret(token)
    else:
        masking.mask_secret(token)


class _InProcessReader:
    """Reader that calls the coordinator in a thread of this process."""

    def __init__(self, gateway: StageGateway) -> None:
        self._gateway = gateway

    async def describe(self, job_id: JobId) -> JobView:
        """Return the current view of a job."""
        return await asyncio.to_thread(self._gateway.describe, job_id)

    async def renew(self) -> None:
        """Do nothing, as access to the database needs no token."""


def maintenance_gateway(conn_id: str = DEFAULT_CONN_ID) -> JobMaintenance:
    """Return a gateway for maintenance."""
    from airflow_provider_statecheck.maintenance.actions import MAINTENANCE

    return _gateway(MAINTENANCE, lambda services: services.maintenance, conn_id)


def savepoint_gateway(conn_id: str = DEFAULT_CONN_ID) -> JobSavepoints:
    """Return a gateway for savepoints."""
    from airflow_provider_statecheck.maintenance.actions import SAVEPOINTS

    return _gateway(SAVEPOINTS, lambda services: services.savepoints, conn_id)


def coordinator_rows(conn_id: str = DEFAULT_CONN_ID) -> AlignedCheckpoints:
    """Return a gateway to the rows of aligned checkpoints."""
    from airflow_provider_statecheck.maintenance.actions import ALIGNED

    return _gateway(ALIGNED, lambda services: services.aligned, conn_id)


def restore_gateway(conn_id: str = DEFAULT_CONN_ID) -> JobRestoring:
    """Return a gateway for restores in place."""
    from airflow_provider_statecheck.maintenance.actions import RESTORES

    return _gateway(RESTORES, lambda services: services.restoring, conn_id)


def job_rows() -> JobStore:
    """
    Return the store that lists jobs.

    :raises EnvironmentNotReadyError: if Airflow's database is not accessible.
    """
    return _local_services("jobs").rows


def job_recovery() -> JobRecovery:
    """
    Return the service that recreates the rows of lost jobs.

    :raises EnvironmentNotReadyError: if Airflow's database is not accessible.
    """
    return _local_services("recover").recovery


def job_rewinding() -> JobRewinding:
    """
    Return the service that rewinds the state of jobs to an earlier run.

    :raises EnvironmentNotReadyError: if Airflow's database is not accessible.
    """
    return _local_services("rewind").rewinding


def provider_tables() -> ProviderTables:
    """
    Return the tables of this package as a whole.

    :raises EnvironmentNotReadyError: if Airflow's database is not accessible.
    """
    from airflow_provider_statecheck.metadata.provider_tables import ProviderTables

    return ProviderTables(_local_services("uninstall").engine())


def _local_services(command: str) -> Services:
    if not is_orm_open():
        raise EnvironmentNotReadyError(
            f"Expected access to Airflow's database, found a task without it; run 'airflow statecheck {command}' on "
            "the scheduler's machine."
        )
    from airflow_provider_statecheck.api.airflow_services import airflow_services

    return airflow_services()


def _gateway(verbs: Mapping[str, Verb], service: Callable[[Services], Gateway], conn_id: str) -> Gateway:
    """
    Return the service that answers these calls, in process if Airflow's database is accessible, otherwise over HTTP.

    :param conn_id: Connection to the server, used over HTTP only.
    :raises EnvironmentNotReadyError: if the database is not accessible and no task is running.
    """
    if is_orm_open():
        from airflow_provider_statecheck.api.airflow_services import airflow_services

        return service(airflow_services())
    address = coordinator_address(conn_id)
    client = address.open()
    calls: Any = HttpCalls(verbs, client, task_credentials(client, address))
    gateway: Gateway = over_http(calls)
    return gateway


def find_job(gateway: JobReads, job: str) -> JobView:
    """
    Return the job with this name or id.

    :raises CheckpointNotFoundError: if there is no such job; the message names the jobs whose names contain the text or
        are similar.
    :raises InvalidConfigurationError: if the text is the id of one job and the name of another.
    """
    try:
        view = gateway.describe(given_job_id(job))
    except CheckpointNotFoundError as error:
        near = " or ".join(map(repr, _similar_jobs(gateway, job)))
        hint = f"did you mean {near}? " if near else ""
        raise CheckpointNotFoundError(
            f"There is no job {job!r}; {hint}'airflow statecheck jobs' lists all jobs."
        ) from error
    _require_no_namesake(gateway, job, view)
    return view


def _require_no_namesake(gateway: JobReads, job: str, found: JobView) -> None:
    # Any task may open a job under the id of another one, and wait for a command that is to concern its own.
    named = job_id_of(job)
    if named == found.job.job_id:
        return
    with suppress(CheckpointNotFoundError, AccessDeniedError):
        gateway.describe(named)
        raise InvalidConfigurationError(
            f"Expected the name or the id of one job, found {job!r} to be the id of job {found.job.name!r} and the "
            f"name of another; nothing was changed. Give {found.job.name!r} for the first, or {named} for the other."
        )


def _similar_jobs(gateway: JobReads, job: str) -> list[str]:
    try:
        names = [each.name for each in gateway.jobs()[:_SEARCHED_JOBS]]
    except StateCheckError:
        # A caller that may not list jobs learns no names.
        return []
    containing = [name for name in names if job.casefold() in name.casefold()]
    if containing:
        return containing[:_SUGGESTIONS]
    names.sort(key=lambda name: -len(os.path.commonprefix([name.casefold(), job.casefold()])))  # noqa: RUF071 - no paths
    return difflib.get_close_matches(job, names[:_COMPARED_JOBS], n=_SUGGESTIONS)


def job_savepoints(
    conn_id: str = DEFAULT_CONN_ID, storage_conn_id: str | None = None, *, target: str | None = None
) -> WholeJobSavepoints:
    """
    Return the service of savepoints: with the rows in process if Airflow's database is accessible, else over HTTP.

    :param conn_id: Connection to the server, used over HTTP only.
    :param storage_conn_id: Connection with the credentials of the storage, by default ``[statecheck] storage_conn_id``.
    :param target: Directory that the caller gives; other directories must be in the configured locations.
    :raises EnvironmentNotReadyError: if the database is not accessible and no task is running.
    """
    from airflow_provider_statecheck.configuration import configured_savepoint_dir
    from airflow_provider_statecheck.maintenance.job_savepoints import WholeJobSavepoints

    return WholeJobSavepoints(
        rows=coordinator_rows(conn_id),
        maintenance=maintenance_gateway(conn_id),
        savepoints=savepoint_gateway(conn_id),
        open_storage=guarded_storage_opener(storage_conn_id, target),
        directory=configured_savepoint_dir(),
    )
