"""Completed checkpoints, and something that counts what is deleted of them, for tests."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow_provider_statecheck.checkpoint.aligned.snapshot_contents import CompletedCheckpoint
from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.states.handles import (
    DistributionMode,
    FileStateHandle,
    KeyedStateHandle,
    KeyGroupRange,
    OperatorState,
    OperatorStateHandle,
    OperatorStateMeta,
    OperatorSubtaskState,
    StreamStateHandle,
)
from airflow_provider_statecheck.exceptions import StorageError

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
JOB = job_id_of("sales")
OPERATOR = operator_id_of("aggregate")


def file(name: str) -> FileStateHandle:
    return FileStateHandle(f"memory://base/{name}", 10)


def incremental(
    checkpoint_id: int, shared: dict[str, StreamStateHandle], *, backend: str = "b", start: int = 0
) -> KeyedStateHandle:
    return KeyedStateHandle(
        backend_id=backend,
        key_group_range=KeyGroupRange(start, start + 63),
        checkpoint_id=checkpoint_id,
        shared=tuple(sorted(shared.items())),
        private=(("wal", file(f"own-{checkpoint_id}/wal")),),
        meta=file(f"own-{checkpoint_id}/meta"),
    )


def keyed(checkpoint_id: int) -> KeyedStateHandle:
    own = (("keyed", file(f"own-{checkpoint_id}/keyed")),)
    return KeyedStateHandle(
        backend_id="b", key_group_range=KeyGroupRange(0, 0), checkpoint_id=checkpoint_id, private=own
    )


def operator_list(checkpoint_id: int) -> OperatorStateHandle:
    meta = OperatorStateMeta((0,), DistributionMode.SPLIT_DISTRIBUTE)
    return OperatorStateHandle((("list", meta),), file(f"own-{checkpoint_id}/list"))


def operator_state(*subtasks: OperatorSubtaskState, **changes: Any) -> OperatorState:
    values: dict[str, Any] = {
        "operator_id": OPERATOR,
        "uid": "aggregate",
        "parallelism": max(1, len(subtasks)),
        "max_parallelism": 128,
        "subtask_states": dict(enumerate(subtasks)),
    }
    return OperatorState(**values | changes)


def completed(checkpoint_id: int, *states: OperatorState, **changes: Any) -> CompletedCheckpoint:
    values: dict[str, Any] = {
        "job_id": JOB,
        "checkpoint_id": checkpoint_id,
        "triggered_at": MOMENT,
        "completed_at": MOMENT,
        "operator_states": {state.operator_id: state for state in states},
        "properties": CheckpointProperties.for_checkpoint(),
        "external_pointer": f"memory://base/chk-{checkpoint_id}",
        "metadata_uri": f"memory://base/chk-{checkpoint_id}/_metadata",
    }
    return CompletedCheckpoint(**values | changes)


def sharing(checkpoint_id: int, shared: dict[str, StreamStateHandle], **changes: Any) -> CompletedCheckpoint:
    """Make a checkpoint of one subtask that names these shared files."""
    subtask = OperatorSubtaskState(managed_keyed=(incremental(checkpoint_id, shared),))
    return completed(checkpoint_id, operator_state(subtask), **changes)


class RecordingDiscarder:
    """A ``StateDiscarder`` that only notes what it was asked for, and fails where it is told to."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.failing: set[str] = set()

    def discard_metadata(self, uri: str) -> None:
        self._note("metadata", uri)

    def discard_state(self, handle: StreamStateHandle) -> None:
        assert isinstance(handle, FileStateHandle)
        self._note("state", handle.uri)

    def discard_location(self, uri: str) -> None:
        self._note("location", uri)

    def _note(self, kind: str, uri: str) -> None:
        call = f"{kind} {uri.removeprefix('memory://base/')}"
        self.calls.append(call)
        if call in self.failing:
            raise StorageError(f"injected at {call}")
