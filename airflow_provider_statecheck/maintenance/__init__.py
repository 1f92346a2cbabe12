"""Maintenance of jobs and their checkpoints outside of attempts."""
