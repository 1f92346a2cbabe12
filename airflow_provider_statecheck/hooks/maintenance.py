"""
Maintenance gateways and savepoints of whole jobs for Airflow processes.

A process with access to Airflow's database calls the coordinator in process. A maintenance task calls it over HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_statecheck.checkpoint.ids import given_job_id
from airflow_provider_statecheck.checkpoint.store import JobReads, JobView
from airflow_provider_statecheck.configuration import configured_savepoint_dir
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, EnvironmentNotReadyError
from airflow_provider_statecheck.gateway.http import HttpCalls
from airflow_provider_statecheck.gateway.verbs import Verb
from airflow_provider_statecheck.hooks import transport
from airflow_provider_statecheck.hooks.connection import DEFAULT_CONN_ID, coordinator_address, storage_opener
from airflow_provider_statecheck.hooks.transport import is_orm_open
from airflow_provider_statecheck.maintenance.actions import ALIGNED, MAINTENANCE, RESTORES, SAVEPOINTS
from airflow_provider_statecheck.maintenance.job_savepoints import WholeJobSavepoints

if TYPE_CHECKING:
    from airflow_provider_statecheck.api.services import Services
    from airflow_provider_statecheck.checkpoint.aligned.rows import CoordinatorRows
    from airflow_provider_statecheck.checkpoint.store import JobStore
    from airflow_provider_statecheck.maintenance.job_maintenance import MaintenanceGateway
    from airflow_provider_statecheck.maintenance.job_restore import RestoreGateway
    from airflow_provider_statecheck.maintenance.recover import JobRecovery
    from airflow_provider_statecheck.maintenance.rewind import JobRewinding
    from airflow_provider_statecheck.maintenance.savepoints import SavepointGateway

Gateway = TypeVar("Gateway")


def maintenance_gateway(conn_id: str = DEFAULT_CONN_ID) -> MaintenanceGateway:
    """Return a gateway for maintenance."""
    return _gateway(MAINTENANCE, lambda services: services.maintenance, conn_id)


def savepoint_gateway(conn_id: str = DEFAULT_CONN_ID) -> SavepointGateway:
    """Return a gateway for savepoints."""
    return _gateway(SAVEPOINTS, lambda services: services.savepoints, conn_id)


def coordinator_rows(conn_id: str = DEFAULT_CONN_ID) -> CoordinatorRows:
    """Return a gateway to the rows of coordinators of several operators."""
    return _gateway(ALIGNED, lambda services: services.aligned, conn_id)


def restore_gateway(conn_id: str = DEFAULT_CONN_ID) -> RestoreGateway:
    """Return a gateway for restores in place."""
    return _gateway(RESTORES, lambda services: services.restoring, conn_id)


def job_rows() -> JobStore:
    """
    Return the store that lists jobs.

    :raises EnvironmentNotReadyError: Airflow's database is not accessible.
    """
    return _local_services("jobs").rows


def job_recovery() -> JobRecovery:
    """
    Return the service that recreates the rows of lost jobs.

    :raises EnvironmentNotReadyError: Airflow's database is not accessible.
    """
    return _local_services("recover").recovery


def job_rewinding() -> JobRewinding:
    """
    Return the service that rewinds the state of jobs to an earlier run.

    :raises EnvironmentNotReadyError: Airflow's database is not accessible.
    """
    return _local_services("rewind").rewinding


def _local_services(command: str) -> Services:
    if not is_orm_open():
        raise EnvironmentNotReadyError(
            f"Expected access to Airflow's database, found a task without it; run 'airflow statecheck {command}' on the "
            f"scheduler's machine."
        )
    from airflow_provider_statecheck.api.airflow_services import airflow_services

    return airflow_services()


def _gateway(verbs: Mapping[str, Verb], service: Callable[[Services], Gateway], conn_id: str) -> Gateway:
    """
    Return the service that answers these calls, in process if Airflow's database is accessible, otherwise over HTTP.

    :param conn_id: Connection to the server, used over HTTP only.
    :raises EnvironmentNotReadyError: The database is not accessible and no task is running.
    """
    if is_orm_open():
        from airflow_provider_statecheck.api.airflow_services import airflow_services

        return service(airflow_services())
    address = coordinator_address(conn_id)
    client = address.open()
    calls: Any = HttpCalls(verbs, client, transport.task_credentials(client, address))
    gateway: Gateway = transport.over_http(calls)
    return gateway


def find_job(gateway: JobReads, job: str) -> JobView:
    """
    Return the job with this name or id.

    :raises CheckpointNotFoundError: There is no such job.
    """
    try:
        return gateway.describe(given_job_id(job))
    except CheckpointNotFoundError as error:
        raise CheckpointNotFoundError(f"There is no job {job!r}; 'airflow statecheck jobs' lists all jobs.") from error


def job_savepoints(conn_id: str = DEFAULT_CONN_ID, storage_conn_id: str | None = None) -> WholeJobSavepoints:
    """
    Return the service that takes savepoints: with the rows in process if Airflow's database is accessible, else over HTTP.

    :param conn_id: Connection to the server, used over HTTP only.
    :param storage_conn_id: Connection with the credentials of the storage, by default ``[statecheck] storage_conn_id``.
    :raises EnvironmentNotReadyError: The database is not accessible and no task is running.
    """
    return WholeJobSavepoints(
        rows=coordinator_rows(conn_id),
        maintenance=maintenance_gateway(conn_id),
        savepoints=savepoint_gateway(conn_id),
        open_storage=storage_opener(storage_conn_id),
        directory=configured_savepoint_dir(),
    )
