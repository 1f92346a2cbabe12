"""Completed checkpoints with files in a folder, and calls to the rows of aligned checkpoints."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.aligned.contents import CompletedCheckpoint
from airflow_provider_statecheck.checkpoint.ids import (
    METADATA_FILE,
    checkpoint_uri,
    job_id_of,
    operator_id_of,
    shared_uri,
)
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, CheckpointRetentionPolicy
from airflow_provider_statecheck.checkpoint.records import Clock
from airflow_provider_statecheck.checkpoint.states.handles import (
    FileStateHandle,
    KeyedStateHandle,
    KeyGroupRange,
    MasterState,
    OperatorState,
    OperatorSubtaskState,
)
from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument, InlineStateHandle, encode_metadata

JOB = job_id_of("sales")
OPERATOR = operator_id_of("aggregate")
NEVER = CheckpointProperties.for_checkpoint(CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION)
SAVEPOINT = CheckpointProperties.for_savepoint()
UNCLAIMED = CheckpointProperties.for_unclaimed_snapshot()


def with_other_metadata(checkpoint: CompletedCheckpoint, sha256: str = "f" * 64) -> CompletedCheckpoint:
    """Return a checkpoint whose metadata file has other bytes."""
    return replace(checkpoint, metadata=replace(checkpoint.metadata, sha256=sha256))


class OnAlignedRows:
    """The rows of jobs as a process calls them that takes savepoints of whole jobs."""

    @pytest.fixture
    def rows(self, jobs: JobStore) -> AlignedCheckpoints:
        """Return the calls to the rows."""
        return AlignedCheckpoints(jobs)


class WrittenCheckpoints:
    """Writes the files of checkpoints, each with a private and some shared ones."""

    def __init__(self, storage: CheckpointStorage, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock

    def write(
        self, checkpoint_id: int, shared: tuple[str, ...] = ("common",), properties: CheckpointProperties = NEVER
    ) -> CompletedCheckpoint:
        location = checkpoint_uri(self._storage.base_uri, JOB, checkpoint_id)
        handle = KeyedStateHandle(
            backend_id="backend",
            key_group_range=KeyGroupRange(0, 3),
            checkpoint_id=checkpoint_id,
            shared=tuple((name, self._file(self.shared(name))) for name in shared),
            private=(("own", self._file(f"{location}/own")),),
        )
        state = OperatorState(
            operator_id=OPERATOR,
            uid="aggregate",
            parallelism=1,
            max_parallelism=4,
            subtask_states={0: OperatorSubtaskState(managed_keyed=(handle,))},
        )
        return self._completed(checkpoint_id, location, state, properties)

    def shared(self, name: str = "common") -> str:
        """Return the URI of a shared file."""
        return f"{shared_uri(self._storage.base_uri, JOB, OPERATOR)}/{name}/file"

    def is_whole(self, checkpoint: CompletedCheckpoint) -> bool:
        """Tell whether every file of a checkpoint is there."""
        (handle,) = checkpoint.operator_states[OPERATOR].subtask_states[0].managed_keyed
        assert isinstance(handle, KeyedStateHandle)
        streams = [stream for _, stream in (*handle.shared, *handle.private)]
        uris = [checkpoint.metadata.uri, *(s.uri for s in streams if isinstance(s, FileStateHandle))]
        return all(self._storage.exists(uri) for uri in uris)

    def _file(self, uri: str) -> FileStateHandle:
        data = uri.encode()
        self._storage.write_bytes(uri, data, overwrite=True)
        return FileStateHandle(uri, len(data), hashlib.sha256(data).hexdigest())

    def _completed(
        self, checkpoint_id: int, location: str, state: OperatorState, properties: CheckpointProperties
    ) -> CompletedCheckpoint:
        masters = (MasterState(name="hook", version=1, data=b"\x00"),)
        uri = f"{location}/{METADATA_FILE}"
        document = CheckpointDocument(
            job_id=JOB,
            job_name="sales",
            operator_id=OPERATOR,
            uid="aggregate",
            checkpoint_id=checkpoint_id,
            epoch=1,
            generation=1,
            snapshots=(),
            state=InlineStateHandle(value={}),
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
            properties=properties,
            operator_states=(state,),
            master_states=masters,
        )
        data = encode_metadata(document, uri=uri)
        self._storage.write_bytes(uri, data, overwrite=True)
        return CompletedCheckpoint(
            job_id=JOB,
            checkpoint_id=checkpoint_id,
            triggered_at=self._clock.now(),
            completed_at=self._clock.now(),
            operator_states={OPERATOR: state},
            master_states=masters,
            properties=properties,
            external_pointer=location,
            metadata=FileStateHandle(uri, len(data), hashlib.sha256(data).hexdigest()),
            checkpointed_size=5,
        )
