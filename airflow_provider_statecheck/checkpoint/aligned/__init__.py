"""Checkpoints aligned across several operators of a job."""
