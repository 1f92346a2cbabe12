"""The part of a stage that runs inside Spark's tasks."""
