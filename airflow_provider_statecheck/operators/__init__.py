"""Airflow operators whose work survives its failure."""
