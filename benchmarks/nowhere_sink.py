"""Sink that discards its output, like the sinks of the peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_statecheck.spark.connectors.sink import SinkContext, SinkTaskContext


class NowhereSink:
    """Sink that discards tables and commits nothing."""

    def open(self, context: SinkContext) -> None:
        """Accept any attempt."""

    def writer(self, context: SinkTaskContext) -> NowhereSink:
        """Return this sink, which has no state of an attempt."""
        return self

    def write(self, table: Any) -> None:
        """Discard a table."""

    def prepare_commit(self) -> list[dict[str, Any]]:
        """Return an empty committable."""
        return [{}]

    def abort(self) -> None:
        """Do nothing."""

    def commit(self, checkpoint_id: int, committables: Sequence[Mapping[str, Any]]) -> None:
        """Do nothing."""

    def close(self, succeeded: bool) -> None:
        """Do nothing."""
