"""Reaching the coordinator from Airflow."""
