"""Snapshots of DataFrames: writing, manifests, reading, and detection of damage."""
