"""How much of a source there is and is read: bytes, or splits where nobody knows the bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_statecheck.spark.sources.source import Increment, SplitEnumerator


def total_of(enumerator: SplitEnumerator) -> int:
    """Return how much there is."""
    return enumerator.total_splits if enumerator.total_bytes is None else enumerator.total_bytes


def finished_of(enumerator: SplitEnumerator) -> int:
    """Return how much of it is read."""
    known = enumerator.total_bytes is not None and enumerator.finished_bytes is not None
    return (enumerator.finished_bytes or 0) if known else enumerator.finished_splits


def amount_of(increment: Increment) -> int:
    """Return how much an increment reads."""
    return len(increment.splits) if increment.size_bytes is None else increment.size_bytes
