"""How a driver in another process reaches the coordinator, and how its task does meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_statecheck.checkpoint.records import AttemptOwner
from airflow_provider_statecheck.hooks.transport import is_orm_open, task_gateway

if TYPE_CHECKING:
    from airflow_provider_statecheck.gateway.http import HttpGateway


@dataclass(frozen=True, slots=True)
class DriverAccess:
    """A server that both can reach."""

    url: str
    gateway: HttpGateway
    """The task's own way; it knows the tokens of the attempts that it registers."""


@contextmanager
def driver_access(owner: AttemptOwner) -> Iterator[DriverAccess]:
    """
    Find the coordinator's API, or serve it as long as the context lasts where Airflow's database is open.

    :param owner: The task.
    """
    if is_orm_open():
        with _own_server(owner) as access:
            yield access
    else:
        from airflow_provider_statecheck.hooks.address import coordinator_address

        yield DriverAccess(coordinator_address().url, task_gateway())


@contextmanager
def _own_server(owner: AttemptOwner) -> Iterator[DriverAccess]:
    from airflow_provider_statecheck.api.airflow_services import airflow_services
    from airflow_provider_statecheck.gateway.http import HttpGateway
    from airflow_provider_statecheck.gateway.http_client import HttpClient
    from airflow_provider_statecheck.hooks.own_server import OwnTokens, serving
    from airflow_provider_statecheck.metadata.token_store import Caller

    task = dict(owner.airflow)
    caller = Caller(
        dag_id=task["dag_id"], run_id=task["run_id"], task_id=task["task_id"], map_index=int(task["map_index"])
    )
    services = airflow_services()
    with serving(services) as url:
        yield DriverAccess(url, HttpGateway(HttpClient(url), OwnTokens(services, caller)))
