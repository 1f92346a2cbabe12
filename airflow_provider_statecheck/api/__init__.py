"""HTTP API of the coordinator on Airflow's api-server."""
