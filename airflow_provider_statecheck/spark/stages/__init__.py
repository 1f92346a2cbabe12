"""Stateful stages on Spark: what a user declares, and how it runs increment by increment."""
