"""Queryable state: reads of single keys of a job's state by name, from completed checkpoints."""
