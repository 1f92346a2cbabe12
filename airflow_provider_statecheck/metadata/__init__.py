"""Tables of the coordinator. Only ``db_manager`` and the migrations import Airflow."""
