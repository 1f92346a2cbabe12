"""Checkpoints that are aligned over several operators of a job."""
