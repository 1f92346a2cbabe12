"""Peers of the comparisons, each run in a separate process."""
