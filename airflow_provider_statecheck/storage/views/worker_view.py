"""Checkpoint storage as the tasks see it."""

from __future__ import annotations

from typing import Protocol

from airflow_provider_statecheck.checkpoint.location_reference import CheckpointStorageLocationReference
from airflow_provider_statecheck.storage.merging.keys import SubtaskKey
from airflow_provider_statecheck.storage.merging.manager import FileMergingSnapshotManager
from airflow_provider_statecheck.storage.views.state_stream import CheckpointStateOutputStream
from airflow_provider_statecheck.storage.views.stream_factory import CheckpointStreamFactory
from airflow_provider_statecheck.storage.views.toolset import CheckpointStateToolset


class Environment(Protocol):
    """What storage asks about the subtask that writes."""

    @property
    def subtask(self) -> SubtaskKey:
        """Return which subtask it is."""
        ...


class StreamingWorkerView(Protocol):
    """Opens streams; it neither makes directories nor lists them, because every partition of a stage has one."""

    def resolve_checkpoint_storage_location(
        self, checkpoint_id: int, reference: CheckpointStorageLocationReference
    ) -> CheckpointStreamFactory:
        """
        Return what opens the streams of a checkpoint.

        :raises InvalidConfigurationError: for a reference that cannot be decoded.
        """
        ...

    def create_task_owned_state_stream(self) -> CheckpointStateOutputStream:
        """Open a stream of state that belongs to the task and outlives the checkpoint."""
        ...

    def create_task_owned_checkpoint_state_toolset(self) -> CheckpointStateToolset:
        """Return what else can be done where task-owned state is."""
        ...


class CheckpointStorageWorkerView(StreamingWorkerView, Protocol):
    """A view that can be changed into one that merges files."""

    def to_file_merging_storage(
        self, manager: FileMergingSnapshotManager | None, environment: Environment
    ) -> StreamingWorkerView:
        """
        Return a view that merges files, or this one where that is off or impossible.

        :param manager: ``None`` where merging is off.
        :raises InvalidConfigurationError: if the manager writes to other directories.
        """
        ...
