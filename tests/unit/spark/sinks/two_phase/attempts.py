"""Attempts with any sink."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_provider_statecheck.spark.sinks.sink import Sink, SinkContext
from airflow_provider_statecheck.testing.sink_contract import SCHEMA, Committables, SinkAttempt, table_of

__all__ = ["SCHEMA", "Attempt", "Committables", "context_of", "table_of"]


class Attempt(SinkAttempt):
    """An attempt with the sink that a function returns."""

    def __init__(self, make: Callable[[], Sink], epoch: int, **context: Any) -> None:
        super().__init__(make(), epoch, **context)


def context_of(epoch: int, **context: Any) -> SinkContext:
    """Return the context of an attempt."""
    return SinkAttempt(None, epoch, **context).context  # type: ignore[arg-type]
