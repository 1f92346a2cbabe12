"""Checkpoints: records, coordinator and retention, with the standard library only."""
