"""Chosen tests with other versions of Spark, Airflow and Python than those of the constraints."""
