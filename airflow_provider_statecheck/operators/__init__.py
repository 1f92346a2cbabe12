"""Airflow operators that resume from checkpoints."""
