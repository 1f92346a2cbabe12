"""Runs of a source without Spark: its increments, and its state as a checkpoint stores it."""

from __future__ import annotations

from typing import Any

from airflow_provider_statecheck.storage.state_json import decode_state, encode_state


def state_of(enumerator: Any) -> Any:
    """Return the state of a source as the next attempt gets it."""
    return decode_state(encode_state(enumerator.snapshot()))


def increments_of(enumerator: Any) -> list[Any]:
    """Return the increments that are left."""
    return list(iter(enumerator.next_increment, None))
