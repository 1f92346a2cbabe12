"""HTML pages for Airflow users, which the plugin shows in Airflow's UI."""
