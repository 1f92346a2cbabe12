"""Checkpoint storage as the coordinator and the tasks see it: locations, streams, and what handles lead to."""
