"""The streams into which a task writes state; its files may be named by later checkpoints too."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_statecheck.checkpoint.states.handles import CheckpointedStateScope
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.fs_state_stream import FsCheckpointStateOutputStream, StateWriting


@dataclass(frozen=True, slots=True)
class TaskStreams:
    """
    Opens streams below one directory of the stage, whatever their scope.

    Increments write more often than checkpoints are taken, so nothing that they write belongs to one checkpoint alone.
    """

    storage: CheckpointStorage
    directory: str
    writing: StateWriting

    def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope) -> FsCheckpointStateOutputStream:
        """Open a stream; nothing is created on storage yet."""
        return FsCheckpointStateOutputStream.open(self.storage, self.directory, self.writing)
