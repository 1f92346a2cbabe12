"""The coordinator's tables. SQLAlchemy without Airflow; only the DB manager and its migrations know Airflow."""
