"""Checkpoints aligned across several operators of a job, and savepoints of the whole job."""
