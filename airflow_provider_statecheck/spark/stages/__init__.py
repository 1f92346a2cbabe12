"""Stateful stages on Spark: declaration, planning and execution in increments."""
