"""A sink whose output goes nowhere, as that of the peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_statecheck.spark.sinks.sink import SinkContext, SinkTaskContext


class NowhereSink:
    """Takes tables and commits nothing."""

    def open(self, context: SinkContext) -> None:
        """Accept any attempt."""

    def writer(self, context: SinkTaskContext) -> NowhereSink:
        """Return itself: there is nothing to keep apart."""
        return self

    def write(self, table: Any) -> None:
        """Drop a table."""

    def prepare_commit(self) -> list[dict[str, Any]]:
        """Return that there is nothing to commit."""
        return [{}]

    def abort(self) -> None:
        """Give up nothing."""

    def commit(self, checkpoint_id: int, committables: Sequence[Mapping[str, Any]]) -> None:
        """Publish nothing."""

    def close(self, succeeded: bool) -> None:
        """End."""
