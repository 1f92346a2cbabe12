"""Maintenance: garbage collection, pruning, recovery, rewinding, savepoints, verification."""
