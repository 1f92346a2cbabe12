"""Savepoints of whole jobs for Airflow processes."""

from __future__ import annotations

from airflow_provider_statecheck.configuration import configured_savepoint_dir
from airflow_provider_statecheck.hooks.connection import DEFAULT_CONN_ID
from airflow_provider_statecheck.hooks.maintenance import coordinator_rows, maintenance_gateway, savepoint_gateway
from airflow_provider_statecheck.hooks.storage import storage_opener
from airflow_provider_statecheck.maintenance.job_savepoints import WholeJobSavepoints


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
