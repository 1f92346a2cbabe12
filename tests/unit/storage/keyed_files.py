"""Stages without Spark whose subtasks write files of keyed state that checkpoints share."""

from __future__ import annotations

import hashlib
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.layout import epoch_name, keyed_state_uri
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    IncrementalKeyedStateHandle,
    OperatorState,
    OperatorSubtaskState,
    StreamStateHandle,
)
from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange
from airflow_provider_statecheck.spark.attempt import CheckpointContent, StageAttempt
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import state_uris

UID = "aggregate/balance"


def state_file(
    storage: CheckpointStorage, attempt: AttemptRef, content: bytes = b"state", subtask: int = 0
) -> FileStateHandle:
    """Write a file as a subtask does."""
    directory = keyed_state_uri(storage.base_uri, attempt.job_id, attempt.operator_id, subtask)
    return write(storage, f"{directory}/{epoch_name(attempt.epoch)}", content)


def write(storage: CheckpointStorage, uri: str, content: bytes = b"state") -> FileStateHandle:
    """Write a file and return its handle."""
    storage.write_bytes(uri, content)
    return FileStateHandle(uri, len(content), hashlib.sha256(content).hexdigest())


def keyed(*shared: StreamStateHandle, private: tuple[StreamStateHandle, ...] = (), uid: str = UID) -> OperatorState:
    """Return the state of an operator of one subtask that names these files."""
    handle = IncrementalKeyedStateHandle(
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
