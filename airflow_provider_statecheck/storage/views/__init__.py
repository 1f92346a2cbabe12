"""Checkpoint storage for the coordinator and the tasks: locations, streams and state files."""
