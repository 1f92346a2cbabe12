"""
Completed checkpoints of several operators, their contents, and the interface to store them.

Each acknowledgement with state refers to a manifest in the directory of the checkpoint. The coordinator writes a
manifest for finished and unstarted operators, hooks and operator coordinators. Merged, the manifests are the
checkpoint's metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol, runtime_checkable

from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.records import AcknowledgementRecord, CheckpointRecord
from airflow_provider_statecheck.checkpoint.states.handles import (
    FileStateHandle,
    MasterState,
    OperatorState,
)
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, InvalidConfigurationError


class MemberCheckpoint(Protocol):
    """The checkpoint of one stage within a savepoint of the whole job, as its metadata describes it."""

    @property
    def named_bytes(self) -> int:
        """The size of all files that the member references, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompletedCheckpoint:
    """
    A checkpoint that a restore can read; instances with the same job and id are equal.

    :raises InvalidConfigurationError: if ``completed_at`` is before ``triggered_at``.
    """

    job_id: JobId
    checkpoint_id: int
    triggered_at: datetime
    completed_at: datetime
    operator_states: dict[OperatorId, OperatorState] = field(default_factory=dict)
    master_states: tuple[MasterState, ...] = ()
    members: tuple[MemberCheckpoint, ...] = ()
    """The checkpoints of the stages in a savepoint of the whole job."""
    properties: CheckpointProperties = field(default_factory=CheckpointProperties)
    external_pointer: str
    """The directory of the checkpoint."""
    metadata: FileStateHandle
    checkpointed_size: int = 0
    """The size of the state that this checkpoint added, in bytes."""

    def __post_init__(self) -> None:
        if self.completed_at < self.triggered_at:
            raise InvalidConfigurationError(
                f"Expected checkpoint {self.checkpoint_id} to be completed after it was triggered at "
                f"{self.triggered_at}, found {self.completed_at}."
            )

    @property
    def state_size(self) -> int:
        """The size of all referenced state in bytes."""
        states = sum(state.state_size for state in self.operator_states.values())
        return states + sum(member.named_bytes for member in self.members)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CompletedCheckpoint):
            return NotImplemented
        return (self.job_id, self.checkpoint_id) == (other.job_id, other.checkpoint_id)

    def __hash__(self) -> int:
        return hash((self.job_id, self.checkpoint_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedContent:
    """The content of the metadata or of one manifest."""

    operator_states: tuple[OperatorState, ...] = ()
    master_states: tuple[MasterState, ...] = ()
    members: tuple[MemberCheckpoint, ...] = ()


@runtime_checkable
class AlignedStorage(Protocol):
    """
    Storage of checkpoint files.

    Writes are idempotent: writing the same bytes to an existing file succeeds. Never call it within a transaction.
    """

    @property
    def has_default_savepoint_location(self) -> bool:
        """Whether a default directory for savepoints is configured."""

    def initialize_base_locations_for_checkpoint(self) -> None:
        """
        Create the base directories of all checkpoints.

        :raises StorageError: if a directory cannot be created.
        """

    def savepoint_parent(self, target: str | None) -> str:
        """
        Return the directory in which the coordinator names a savepoint.

        :raises InvalidConfigurationError: if there is neither a target nor a default.
        """

    def initialize_location(self, location: str) -> None:
        """
        Create the directory of a checkpoint.

        :raises StorageError: if it cannot be created.
        """

    def write_manifest(self, checkpoint: CheckpointRecord, content: AlignedContent) -> FileStateHandle:
        """
        Write a manifest to the directory of the checkpoint, with a name derived from the bytes.

        :raises StorageError: if the write fails.
        """

    def write_metadata(self, checkpoint: CheckpointRecord, content: AlignedContent) -> FileStateHandle:
        """
        Write the metadata of a checkpoint atomically.

        :raises StorageError: if the write fails, or the file exists with other bytes.
        """

    def read(self, file: FileStateHandle) -> AlignedContent:
        """
        Read a manifest or the metadata.

        :raises CorruptStateError: if the checksum differs.
        :raises CheckpointNotFoundError: if the file is missing.
        """

    def copy_state(self, checkpoint: CheckpointRecord, states: Iterable[OperatorState]) -> tuple[OperatorState, ...]:
        """
        Copy the files of states to the directory of a checkpoint and return states that refer to the copies.

        :raises StorageError: if a copy fails.
        :raises CheckpointNotFoundError: if a file is missing.
        """

    def delete_manifest(self, uri: str) -> None:
        """
        Delete an unreferenced manifest.

        :raises StorageError: if the file may still exist.
        """

    def resolve_checkpoint(self, pointer: str) -> CompletedCheckpoint:
        """
        Return the checkpoint or savepoint at a pointer; it may belong to any job.

        :raises InvalidConfigurationError: if the pointer is empty.
        :raises CheckpointNotFoundError: if it does not exist.
        """


def manifest_of(acknowledgement: AcknowledgementRecord) -> FileStateHandle | None:
    """Return the manifest of an acknowledgement, ``None`` if it has no state."""
    if acknowledgement.manifest_uri is None:
        return None
    return FileStateHandle(
        uri=acknowledgement.manifest_uri, size=acknowledgement.manifest_size, sha256=acknowledgement.manifest_sha256
    )


def contents(storage: AlignedStorage, acknowledgements: Iterable[AcknowledgementRecord]) -> Iterator[AlignedContent]:
    """
    Read the manifests of acknowledgements.

    :raises StorageError: if a manifest cannot be read.
    :raises CheckpointNotFoundError: if a manifest is missing.
    """
    for acknowledgement in sorted(acknowledgements, key=lambda a: a.operator_id):
        manifest = manifest_of(acknowledgement)
        if manifest is not None:
            yield storage.read(manifest)


def merged(found: Iterable[AlignedContent]) -> AlignedContent:
    """Merge contents; the state of an operator's subtasks and of its coordinator may be in different manifests."""
    states: dict[OperatorId, OperatorState] = {}
    masters: list[MasterState] = []
    members: list[MemberCheckpoint] = []
    for content in found:
        masters += content.master_states
        members += content.members
        for state in content.operator_states:
            states[state.operator_id] = _joined(states.get(state.operator_id), state)
    ordered = tuple(states[operator_id] for operator_id in sorted(states))
    return AlignedContent(operator_states=ordered, master_states=tuple(masters), members=tuple(members))


def _joined(one: OperatorState | None, other: OperatorState) -> OperatorState:
    if one is None:
        return other
    base, added = (other, one) if other.subtask_states or other.is_fully_finished else (one, other)
    return replace(base, coordinator_state=base.coordinator_state or added.coordinator_state)


def completed_of(
    checkpoint: CheckpointRecord, content: AlignedContent, metadata: FileStateHandle
) -> CompletedCheckpoint:
    """Return a completed checkpoint from its row, content and metadata file."""
    return CompletedCheckpoint(
        job_id=checkpoint.job_id,
        checkpoint_id=checkpoint.checkpoint_id,
        triggered_at=checkpoint.triggered_at,
        completed_at=checkpoint.completed_at or checkpoint.triggered_at,
        operator_states={state.operator_id: state for state in content.operator_states},
        master_states=content.master_states,
        members=content.members,
        properties=checkpoint.properties,
        external_pointer=checkpoint.location,
        metadata=metadata,
        checkpointed_size=checkpoint.state_size_bytes,
    )


def metadata_of(checkpoint: CheckpointRecord) -> FileStateHandle:
    """
    Return the metadata file of a completed checkpoint.

    :raises CheckpointNotFoundError: if the row has no metadata.
    """
    if checkpoint.metadata_uri is None:
        raise CheckpointNotFoundError(
            f"Expected metadata of checkpoint {checkpoint.checkpoint_id}, found none; the checkpoint is "
            f"{checkpoint.status.value}."
        )
    return FileStateHandle(
        uri=checkpoint.metadata_uri, size=checkpoint.metadata_size, sha256=checkpoint.metadata_sha256
    )
