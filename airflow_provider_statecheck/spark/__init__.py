"""Stages on Spark. Only this package imports pyspark, and only when a stage runs."""
