"""Keep the checkpoints of all jobs in order, with the Dag that comes with the provider."""

from __future__ import annotations

from airflow_provider_statecheck.operators.maintenance_dag import statecheck_maintenance

statecheck_maintenance()
