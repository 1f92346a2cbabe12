"""Choice of the gateway in a process of Airflow: in process or over HTTP, with the task's credentials."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError
from airflow_provider_statecheck.gateway.http_client import HttpClient
from airflow_provider_statecheck.gateway.protocol import CHALLENGE_KEY, challenge_of
from airflow_provider_statecheck.hooks.connection import (
    DEFAULT_CONN_ID,
    DEFAULT_TIMEOUT_SECONDS,
    CoordinatorAddress,
    coordinator_address,
)

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.gateway import CheckpointCoordinatorGateway
    from airflow_provider_statecheck.checkpoint.ids import JobId
    from airflow_provider_statecheck.checkpoint.store import JobView
    from airflow_provider_statecheck.gateway.http import HttpGateway
    from airflow_provider_statecheck.gateway.http_client import Credentials
    from airflow_provider_statecheck.gateway.retrying import RetryingGateway


Reply = TypeVar("Reply")

_BLOCKED = "airflow-db-not-allowed"

# An api-server that is restarted is back within these; Airflow itself gives a task up soon after.
_PAUSES_SECONDS = (0.1, 0.5, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0)


def is_orm_open() -> bool:
    """Tell whether this process may use Airflow's database: tests and commands may, a task under a scheduler may not."""
    return not os.environ.get("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "").startswith(_BLOCKED)


def airflow_gateway(conn_id: str = DEFAULT_CONN_ID) -> RetryingGateway:
    """
    Reach the coordinator of this Airflow: in process where its database is open, else over HTTP.

    :param conn_id: Connection that names the server, for the way over HTTP.
    :raises EnvironmentNotReadyError: where the database is blocked and no task is running.
    """
    return _in_process() if is_orm_open() else over_http(task_gateway(conn_id))


def over_http(gateway: HttpGateway) -> RetryingGateway:
    """Repeat calls that fail while the api-server is down for a moment."""
    from airflow_provider_statecheck.gateway.retrying import RetryingGateway

    return RetryingGateway(gateway, _PAUSES_SECONDS)


def patiently(call: Callable[[], Reply]) -> Reply:
    """
    Make a call over HTTP, again and again while the api-server is down for a moment.

    :param call: What may be repeated.
    """
    from airflow_provider_statecheck.gateway.retrying import repeat

    return repeat(call, _PAUSES_SECONDS)


def task_gateway(conn_id: str = DEFAULT_CONN_ID) -> HttpGateway:
    """
    Reach the coordinator's API as the task that runs in this process.

    :param conn_id: Connection that names the server.
    :raises EnvironmentNotReadyError: if none does.
    """
    from airflow_provider_statecheck.gateway.http import HttpGateway

    address = coordinator_address(conn_id)
    client = address.open()
    return HttpGateway(client, task_credentials(client, address))


def task_credentials(client: HttpClient, address: CoordinatorAddress) -> Credentials:
    """
    Return what the task that runs in this process proves itself with.

    :raises EnvironmentNotReadyError: where no task is running.
    """
    ti = _running_task()
    if address.login is None:
        return TaskCredentials(client, ti.id)
    task = {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": ti.task_id, "map_index": ti.map_index}
    return LoginCredentials(client, task, address.login, address.password or "")


def _running_task() -> Any:
    from airflow.sdk import get_current_context

    try:
        return get_current_context()["ti"]
    except RuntimeError as error:
        raise EnvironmentNotReadyError(
            "Expected a running task, or a process that may use Airflow's database, found neither; ask the coordinator "
            "from inside a task or from a command."
        ) from error


def _in_process() -> RetryingGateway:
    from airflow import settings

    from airflow_provider_statecheck.api.airflow_services import AirflowTaskLiveness
    from airflow_provider_statecheck.api.metrics import airflow_metrics
    from airflow_provider_statecheck.gateway.in_process import gateway_on_engine

    return gateway_on_engine(settings.get_engine(), AirflowTaskLiveness(), airflow_metrics())


_CHALLENGE_LIFETIME = timedelta(minutes=5)


class TaskCredentials:
    """
    The challenge exchange: no secret has to be configured on a worker.

    :param client: The server.
    :param ti_id: Id of the running task instance, which is a new one in each try.
    """

    def __init__(self, client: HttpClient, ti_id: Any) -> None:
        self._client = client
        self._ti_id = ti_id

    def obtain(self) -> str:
        """
        Return a token of this task.

        :raises AccessDeniedError: if the coordinator does not believe it.
        """
        secret = secrets.token_urlsafe(32)
        _announce(self._ti_id, challenge_of(secret))
        answer = self._client.post("token", {"ti_id": str(self._ti_id), "secret": secret})
        return _masked(answer["token"])


class LoginCredentials:
    """
    A user of Airflow who may edit the task's instances, for deployments where the exchange is not possible.

    :param client: The server.
    :param task: Coordinates of the task instance.
    :param login: Name of the user.
    :param password: Password of the user.
    """

    def __init__(self, client: HttpClient, task: Mapping[str, Any], login: str, password: str) -> None:
        self._client = client
        self._task = dict(task)
        self._login = login
        self._password = password

    def obtain(self) -> str:
        """
        Return a token of this task.

        :raises AccessDeniedError: if the user is unknown or may not edit the task.
        """
        user = self._client.log_in(self._login, self._password)
        return _masked(self._client.post("token/login", self._task, user)["token"])

    def __repr__(self) -> str:
        return f"LoginCredentials({self._login!r}, ***)"


def _announce(ti_id: Any, challenge: str) -> None:
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import SetTaskStateStore

    # The message itself, for a worker's own state store backend would send a reference instead of the value.
    expires_at = datetime.now(UTC) + _CHALLENGE_LIFETIME
    message = SetTaskStateStore(ti_id=ti_id, key=CHALLENGE_KEY, value=challenge, expires_at=expires_at)
    task_runner.SUPERVISOR_COMMS.send(message)


def _masked(token: Any) -> str:
    from airflow.sdk.log import mask_secret

    mask_secret(token)
    return str(token)


RENEWAL_SECONDS = 300.0
"""How often a token for reading is renewed, which lives for three times as long."""


class JobReader(Protocol):
    """Reads jobs without blocking the event loop."""

    async def describe(self, job_id: JobId) -> JobView:
        """Return all that is kept of a job."""
        ...

    async def renew(self) -> None:
        """Keep the right to read, which ends if this is not called every ``RENEWAL_SECONDS``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingAccess:
    """A server and a token that can read one job there."""

    url: str
    token: str = field(repr=False)
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """How long to wait for an answer."""


def reading_access(job_id: JobId, conn_id: str = DEFAULT_CONN_ID) -> ReadingAccess | None:
    """
    Return what another process needs to read a job, ``None`` where Airflow's database is open and needs no token.

    :param job_id: The job.
    :param conn_id: Connection that names the server.
    :raises EnvironmentNotReadyError: where no task is running.
    """
    if is_orm_open():
        return None
    from airflow.sdk.log import mask_secret

    address, gateway = coordinator_address(conn_id), task_gateway(conn_id)
    token = patiently(lambda: gateway.reading_token(job_id))
    mask_secret(token)
    return ReadingAccess(url=address.url, token=token, timeout_seconds=address.timeout_seconds)


@asynccontextmanager
async def job_reader(access: ReadingAccess | None) -> AsyncIterator[JobReader]:
    """
    Give what reads jobs.

    :param access: What was given; ``None`` to ask the coordinator in this process, in a thread.
    :raises EnvironmentNotReadyError: without access where Airflow's database is blocked.
    """
    if access is None:
        yield _InProcessReader(await asyncio.to_thread(airflow_gateway))
        return
    from airflow.sdk.log import amask_secret

    from airflow_provider_statecheck.gateway.http import AsyncJobReader

    await amask_secret(access.token)
    address = CoordinatorAddress(url=access.url, timeout_seconds=access.timeout_seconds)
    async with await asyncio.to_thread(address.open_async) as client:
        yield AsyncJobReader(access.url, access.token, client)


class _InProcessReader:
    """Asks the coordinator in a thread of this process."""

    def __init__(self, gateway: CheckpointCoordinatorGateway) -> None:
        self._gateway = gateway

    async def describe(self, job_id: JobId) -> JobView:
        """Return all that is kept of a job."""
        return await asyncio.to_thread(self._gateway.describe, job_id)

    async def renew(self) -> None:
        """Do nothing: who has the database open needs no token."""
