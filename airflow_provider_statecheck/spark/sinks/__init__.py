"""Sinks of stages, with exactly-once output."""
