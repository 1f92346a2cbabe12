"""Calls of the API for tasks of a maintenance Dag."""

from __future__ import annotations

from airflow_provider_statecheck.checkpoint.aligned.rows import CoordinatorRows
from airflow_provider_statecheck.gateway.verbs import verbs_of
from airflow_provider_statecheck.maintenance.job_maintenance import MaintenanceGateway
from airflow_provider_statecheck.maintenance.job_restore import RestoreGateway
from airflow_provider_statecheck.maintenance.savepoints import SavepointGateway

MAINTENANCE = verbs_of(MaintenanceGateway, "maintenance")
SAVEPOINTS = verbs_of(SavepointGateway, "savepoints")
RESTORES = verbs_of(RestoreGateway, "savepoints")
ALIGNED = verbs_of(CoordinatorRows, "aligned")
