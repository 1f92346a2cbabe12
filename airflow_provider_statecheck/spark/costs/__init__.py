"""Costs of checkpointing: their measurement, decisions based on them, and limits."""
