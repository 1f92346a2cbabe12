"""The way to the rows for maintenance, and which job somebody means."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of
from airflow_provider_statecheck.configuration import SECTION, configured_places
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, EnvironmentNotReadyError
from airflow_provider_statecheck.hooks import transport
from airflow_provider_statecheck.hooks.address import DEFAULT_CONN_ID, coordinator_address
from airflow_provider_statecheck.hooks.transport import is_orm_open

if TYPE_CHECKING:
    from airflow_provider_statecheck.api.services import Services
    from airflow_provider_statecheck.checkpoint.job_view import JobView
    from airflow_provider_statecheck.checkpoint.maintenance import MaintenanceGateway
    from airflow_provider_statecheck.checkpoint.recovery import JobRecovery
    from airflow_provider_statecheck.checkpoint.rewinding import JobRewinding
    from airflow_provider_statecheck.checkpoint.savepoints import SavepointGateway
    from airflow_provider_statecheck.hooks.collecting import OpenStorage
    from airflow_provider_statecheck.hooks.maintenance_http import MaintenanceCalls
    from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

_JOB_ID = re.compile(r"[0-9a-f]{32}")


def maintenance_gateway(conn_id: str = DEFAULT_CONN_ID) -> MaintenanceGateway:
    """
    Reach the rows: in process where Airflow's database is open, else over HTTP as a task of a maintenance Dag.

    :param conn_id: Connection that names the server, for the way over HTTP.
    :raises EnvironmentNotReadyError: where the database is blocked and no task is running.
    """
    if is_orm_open():
        from airflow_provider_statecheck.api.airflow_services import airflow_services

        return airflow_services().maintenance
    from airflow_provider_statecheck.hooks.maintenance_http import HttpMaintenance

    return HttpMaintenance(_calls(conn_id))


def savepoint_gateway(conn_id: str = DEFAULT_CONN_ID) -> SavepointGateway:
    """
    Reach what takes savepoints, in the same ways.

    :param conn_id: Connection that names the server, for the way over HTTP.
    :raises EnvironmentNotReadyError: where the database is blocked and no task is running.
    """
    if is_orm_open():
        from airflow_provider_statecheck.api.airflow_services import airflow_services

        return airflow_services().savepoints
    from airflow_provider_statecheck.hooks.savepoints_http import HttpSavepoints

    return HttpSavepoints(_calls(conn_id))


def job_recovery() -> JobRecovery:
    """
    Return what makes the rows of jobs anew; only where Airflow's database is open.

    :raises EnvironmentNotReadyError: elsewhere.
    """
    return _services_beside_scheduler("recover").recovery


def job_rewinding() -> JobRewinding:
    """
    Return what takes the state of jobs back to an earlier run; only where Airflow's database is open.

    :raises EnvironmentNotReadyError: elsewhere.
    """
    return _services_beside_scheduler("rewind").rewinding


def _services_beside_scheduler(command: str) -> Services:
    if not is_orm_open():
        raise EnvironmentNotReadyError(
            f"Expected Airflow's database to be open, found a task; run 'airflow statecheck {command}' beside the scheduler."
        )
    from airflow_provider_statecheck.api.airflow_services import airflow_services

    return airflow_services()


def _calls(conn_id: str) -> MaintenanceCalls:
    from airflow_provider_statecheck.hooks.maintenance_http import MaintenanceCalls

    address = coordinator_address(conn_id)
    client = address.open()
    return MaintenanceCalls(client, transport.task_credentials(client, address))


def storage_opener(conn_id: str | None = None) -> OpenStorage:
    """
    Return what opens a checkpoint directory.

    :param conn_id: Connection with its credentials, by default the one that ``[statecheck] storage_conn_id`` names.
    """
    from airflow.sdk.configuration import conf

    from airflow_provider_statecheck.hooks.storage import open_storage

    used = conn_id or conf.get(SECTION, "storage_conn_id", fallback=None)
    places = configured_places()

    def opened(base_uri: str) -> CheckpointStorage:
        storage = open_storage(base_uri, used)
        return storage.within(storage.allowed | places)

    return opened


def find_job(gateway: MaintenanceGateway, job: str) -> JobView:
    """
    Return a job by its name, or by its id.

    :raises CheckpointNotFoundError: if there is none.
    """
    try:
        return gateway.describe(job_id_of(job))
    except CheckpointNotFoundError as error:
        if _JOB_ID.fullmatch(job):
            return gateway.describe(JobId(job))
        raise CheckpointNotFoundError(
            f"There is no job {job!r}; 'airflow statecheck jobs' lists all there are."
        ) from error
