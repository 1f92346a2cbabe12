"""What opens the streams of one checkpoint."""

from __future__ import annotations

from typing import Protocol

from airflow_provider_statecheck.checkpoint.states.handles import CheckpointedStateScope
from airflow_provider_statecheck.storage.views.state_stream import CheckpointStateOutputStream


class CheckpointStreamFactory(Protocol):
    """Opens streams of state; several threads may ask at once."""

    def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope) -> CheckpointStateOutputStream:
        """Open a stream; nothing is created on storage yet."""
        ...
