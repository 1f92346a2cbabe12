"""The ways from a stage to its coordinator."""
