"""Airflow plugin and listeners."""
