"""The commands ``airflow statecheck ...``."""
