"""Commands of ``airflow statecheck``."""
