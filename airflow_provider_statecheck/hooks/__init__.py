"""Airflow hooks and gateways to the coordinator."""
