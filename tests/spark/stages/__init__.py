"""Stateful stages on a local Spark."""
