"""Stages on Spark. The only place that knows pyspark; it imports it when a stage runs, never before."""
