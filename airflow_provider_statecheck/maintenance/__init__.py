"""Maintenance of jobs: garbage collection, pruning, recovery, rewinding, savepoints and verification."""
