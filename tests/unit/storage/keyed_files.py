"""Stages without Spark whose subtasks write files of keyed state that checkpoints share."""

from __future__ import annotations

import hashlib
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import DEFAULT_LOCATION
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    CheckpointedStateScope,
    FileStateHandle,
    KeyedStateHandle,
    KeyGroupRange,
    OperatorState,
    OperatorSubtaskState,
    SegmentFileStateHandle,
    StreamStateHandle,
)
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import state_uris
from airflow_provider_statecheck.storage.views.checkpoint_storages import NO_CHECKPOINT, FsCheckpointStorageAccess
from airflow_provider_statecheck.storage.views.state_streams import StateWriting

UID = "aggregate/balance"


def state_file(storage: CheckpointStorage, attempt: AttemptRef, content: bytes = b"state") -> FileStateHandle:
    """Write a file of shared state as a subtask does."""
    return _written(storage, attempt, content, NO_CHECKPOINT, CheckpointedStateScope.SHARED)


def exclusive_file(storage: CheckpointStorage, attempt: AttemptRef, checkpoint_id: int) -> FileStateHandle:
    """Write a file of a checkpoint's own state as a subtask does."""
    return _written(storage, attempt, b"own", checkpoint_id, CheckpointedStateScope.EXCLUSIVE)


def _written(
    storage: CheckpointStorage, attempt: AttemptRef, content: bytes, checkpoint_id: int, scope: CheckpointedStateScope
) -> FileStateHandle:
    writing = StateWriting(epoch=attempt.epoch, inline_threshold=0)
    view = FsCheckpointStorageAccess(storage, attempt, writing=writing)
    streams = view.resolve_checkpoint_storage_location(checkpoint_id, DEFAULT_LOCATION)
    stream = streams.create_checkpoint_state_output_stream(scope)
    stream.write(content)
    handle = stream.close_and_get_handle()
    assert isinstance(handle, FileStateHandle)
    return handle


def segments_of(file: FileStateHandle, *lengths: int) -> list[SegmentFileStateHandle]:
    """Return handles of consecutive segments of a file."""
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    scope = CheckpointedStateScope.SHARED
    return [
        SegmentFileStateHandle(file.uri, start, length, scope, str(start), file_size=file.size)
        for start, length in zip(starts, lengths, strict=True)
    ]


def write(storage: CheckpointStorage, uri: str, content: bytes = b"state") -> FileStateHandle:
    """Write a file and return its handle."""
    storage.write_bytes(uri, content)
    return FileStateHandle(uri, len(content), hashlib.sha256(content).hexdigest())


def keyed(*shared: StreamStateHandle, private: tuple[StreamStateHandle, ...] = (), uid: str = UID) -> OperatorState:
    """Return the state of an operator of one subtask that names these files."""
    handle = KeyedStateHandle(
        backend_id="b",
        key_group_range=KeyGroupRange(0, 127),
        checkpoint_id=1,
        shared=tuple((str(i), each) for i, each in enumerate(shared)),
        private=tuple((str(i), each) for i, each in enumerate(private)),
    )
    return OperatorState(
        operator_id=operator_id_of(uid),
        uid=uid,
        parallelism=1,
        max_parallelism=128,
        subtask_states={0: OperatorSubtaskState(managed_keyed=(handle,))},
        coordinator_state=ByteStreamStateHandle("schemas", b"{}"),
    )


def take(attempt: StageAttempt, *shared: StreamStateHandle, has_commit: bool = False) -> CheckpointRecord:
    """Complete a checkpoint that names these files, and carry out what the reply asks for."""
    pending = attempt.begin_checkpoint(60.0)
    assert pending is not None
    content = CheckpointContent(operator_states=(keyed(*shared),), has_commit=has_commit)
    completed = attempt.complete_checkpoint(pending, content)
    assert completed is not None
    return completed


def files_left(storage: CheckpointStorage, job: str) -> set[str]:
    """Return the files of keyed state of a job that are there."""
    root = f"{storage.base_uri}/{job_id_of(job)}/shared"
    return {f"{root}/{name}" for name in storage.list_files(root)}


def uris(*handles: Any) -> set[str]:
    """Return the places of handles, or of what states name."""
    states = [h for h in handles if isinstance(h, OperatorState)]
    return {h.uri for h in handles if not isinstance(h, OperatorState)} | set(state_uris(states))
