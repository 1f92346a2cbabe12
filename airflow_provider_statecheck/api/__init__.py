"""The coordinator on Airflow's api-server."""
