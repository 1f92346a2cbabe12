"""Maintenance Dag of the provider for the checkpoints of all jobs."""

from __future__ import annotations

from airflow_provider_statecheck.operators.maintenance_dag import statecheck_maintenance

statecheck_maintenance()
