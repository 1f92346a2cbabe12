"""Drives a manager as the subtasks of an executor would."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.layout import job_uri
from airflow_provider_statecheck.checkpoint.states.handles import CheckpointedStateScope, SegmentFileStateHandle
from airflow_provider_statecheck.storage.file_merging.manager import (
    FileMergingOptions,
    FileMergingSnapshotManager,
    FileMergingType,
)
from airflow_provider_statecheck.storage.file_merging.physical_files import SubtaskKey, manager_id
from airflow_provider_statecheck.storage.file_merging.stream import FileMergingCheckpointStateOutputStream
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

JOB, OPERATOR = job_id_of("merged"), operator_id_of("totals")
SHARED, EXCLUSIVE = CheckpointedStateScope.SHARED, CheckpointedStateScope.EXCLUSIVE
ACROSS, WITHIN = FileMergingType.ACROSS_CHECKPOINTS, FileMergingType.WITHIN_CHECKPOINT


def subtask(index: int = 0, parallelism: int = 8) -> SubtaskKey:
    return SubtaskKey(job_id=JOB, operator_id=OPERATOR, subtask_index=index, parallelism=parallelism)


@dataclass(slots=True)
class Driver:
    """A manager, the true storage behind it, and short names for what subtasks do."""

    manager: FileMergingSnapshotManager
    storage: CheckpointStorage

    @classmethod
    def over(
        cls,
        storage: CheckpointStorage,
        *,
        through: Any = None,
        subtasks: int = 2,
        epoch: int = 1,
        executor: str = "1",
        buffer: int = 16,
        **settings: Any,
    ) -> Self:
        manager = FileMergingSnapshotManager(manager_id(JOB, executor), epoch, FileMergingOptions(**settings))
        driver = cls(manager, storage)
        driver.init(through or storage, buffer)
        for index in range(subtasks):
            manager.register_subtask(subtask(index))
        return driver

    def init(self, storage: Any, buffer: int = 16, **changed: str) -> None:
        root = job_uri(self.storage.base_uri, JOB)
        places = {"base": self.storage.base_uri, "shared": f"{root}/shared", "taskowned": f"{root}/taskowned"}
        self.manager.init_file_system(storage, **places | changed, write_buffer_size=buffer)

    def stream(
        self, checkpoint: int = 1, index: int = 0, scope: CheckpointedStateScope = SHARED
    ) -> FileMergingCheckpointStateOutputStream:
        return self.manager.create_checkpoint_state_output_stream(subtask(index), checkpoint, scope)

    def write(
        self, data: bytes, checkpoint: int = 1, index: int = 0, scope: CheckpointedStateScope = SHARED
    ) -> SegmentFileStateHandle:
        stream = self.stream(checkpoint, index, scope)
        stream.write(data)
        handle = stream.close_and_get_handle()
        assert handle is not None
        return handle

    def saved(
        self, data: bytes, checkpoint: int = 1, index: int = 0, scope: CheckpointedStateScope = SHARED
    ) -> SegmentFileStateHandle:
        """Write a segment whose checkpoint may be acknowledged."""
        handle = self.write(data, checkpoint, index, scope)
        self.durable(checkpoint, index)
        return handle

    def durable(self, checkpoint: int = 1, index: int = 0) -> None:
        self.manager.make_durable(subtask(index), checkpoint)

    def aborted(self, checkpoint: int, index: int = 0) -> None:
        self.manager.notify_checkpoint_aborted(subtask(index), checkpoint)

    def subsumed(self, checkpoint: int, index: int = 0) -> None:
        self.manager.notify_checkpoint_subsumed(subtask(index), checkpoint)

    def read(self, handle: SegmentFileStateHandle) -> bytes:
        return self.storage.read_range(handle.uri, handle.start, handle.start + handle.length)

    def files(self) -> set[str]:
        """URIs of all files on storage."""
        base = self.storage.base_uri
        return {f"{base}/{path}" for path in self.storage.list_files(base)}
