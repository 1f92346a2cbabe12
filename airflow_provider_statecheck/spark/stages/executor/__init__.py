"""Execution of a stage inside Spark tasks."""
