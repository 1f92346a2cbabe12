"""Reading one job from where nobody can prove to be a task, such as a trigger."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from airflow_provider_statecheck.hooks.address import (
    DEFAULT_CONN_ID,
    DEFAULT_TIMEOUT_SECONDS,
    CoordinatorAddress,
    coordinator_address,
)
from airflow_provider_statecheck.hooks.transport import airflow_gateway, is_orm_open, patiently, task_gateway

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.gateway import CheckpointCoordinatorGateway
    from airflow_provider_statecheck.checkpoint.ids import JobId
    from airflow_provider_statecheck.checkpoint.job_view import JobView

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

    from airflow_provider_statecheck.gateway.http_async import AsyncJobReader

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
