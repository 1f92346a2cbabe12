"""Gateways from a stage to its coordinator: over HTTP or in the same process."""
