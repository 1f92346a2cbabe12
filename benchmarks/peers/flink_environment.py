"""Cached virtual environment for PyFlink, which pins other versions of shared packages."""

from __future__ import annotations

from benchmarks.peers.environments import python_with

VERSION = "2.2.1"


def flink_python() -> str:
    """Return the interpreter of the environment."""
    return python_with(f"flink-{VERSION}", f"apache-flink=={VERSION}")
