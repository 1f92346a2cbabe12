"""Snapshots of DataFrames: how they are written, described and read back."""
