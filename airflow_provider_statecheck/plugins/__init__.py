"""What this provider adds to Airflow's own processes."""
