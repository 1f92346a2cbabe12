"""Benchmarks of this library against peers, measured alternately in one run."""
