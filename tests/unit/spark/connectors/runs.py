"""Runs of a source: its increments, their rows, and its state as a checkpoint stores it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_provider_statecheck.storage.stored_json import decode_state, encode_state


def state_of(enumerator: Any) -> Any:
    """Return the state of a source as the next attempt gets it."""
    return decode_state(encode_state(enumerator.snapshot()))


def increments_of(enumerator: Any) -> list[Any]:
    return list(iter(enumerator.next_increment, None))


def following(enumerator: Any) -> Any:
    """Return the next increment, where there is one."""
    return enumerator.next_increment()


def rows_read(enumerator: Any, rows_of: Callable[[Any], list[Any]] = lambda frame: frame.collect()) -> list[Any]:
    """Read what is left, an increment at a time, and return the rows."""
    found = []
    for increment in iter(enumerator.next_increment, None):
        found += rows_of(enumerator.load(increment))
        enumerator.finish(increment)
    return found
