"""A completed checkpoint, and the order in which its state is discarded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, Self

from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    IncrementalKeyedStateHandle,
    KeyedStateHandle,
    MasterState,
    OperatorState,
    OperatorSubtaskState,
    SegmentFileStateHandle,
    StreamStateHandle,
)
from airflow_provider_statecheck.exceptions import InvalidConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompletedCheckpoint:
    """
    What a restore needs of a checkpoint; two of one job and id are the same.

    :raises InvalidConfigurationError: if it was completed before it was triggered.
    """

    job_id: JobId
    checkpoint_id: int
    triggered_at: datetime
    completed_at: datetime
    operator_states: dict[OperatorId, OperatorState] = field(default_factory=dict)
    master_states: tuple[MasterState, ...] = ()
    properties: CheckpointProperties = field(default_factory=CheckpointProperties)
    external_pointer: str
    """The directory that holds it."""
    metadata_uri: str
    metadata_size: int = 0
    metadata_sha256: str = ""
    checkpointed_size: int = 0
    """Bytes that are new in this checkpoint."""
    restored_properties: CheckpointProperties | None = None
    """Where it came from another job: what it was there."""

    def __post_init__(self) -> None:
        if self.completed_at < self.triggered_at:
            raise InvalidConfigurationError(
                f"Expected checkpoint {self.checkpoint_id} to be completed after it was triggered at {self.triggered_at}, "
                f"found {self.completed_at}."
            )

    @property
    def state_size(self) -> int:
        """Return how many bytes of state it refers to, new or not."""
        return sum(state.state_size for state in self.operator_states.values())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CompletedCheckpoint):
            return NotImplemented
        return (self.job_id, self.checkpoint_id) == (other.job_id, other.checkpoint_id)

    def __hash__(self) -> int:
        return hash((self.job_id, self.checkpoint_id))


class StateDiscarder(Protocol):
    """
    Deletes bytes.

    What is gone already is success, so that each call may be repeated. Several threads may call at once.
    """

    def discard_metadata(self, uri: str) -> None:
        """
        Delete the metadata of a checkpoint.

        :raises StorageError: if it may still be there.
        """
        ...

    def discard_state(self, handle: StreamStateHandle) -> None:
        """
        Delete the state that a handle leads to.

        :raises StorageError: if it may still be there.
        """
        ...

    def discard_location(self, uri: str) -> None:
        """
        Delete the directory of a checkpoint.

        :raises StorageError: if part of it may still be there.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardPlan:
    """
    The bytes that one checkpoint has for itself.

    The metadata goes first: from then on nobody can restore from what is half deleted. Shared state is not in it; the
    registry knows when that is to go.
    """

    metadata_uri: str | None = None
    states: tuple[StreamStateHandle, ...] = ()
    """In no order; they may go at the same time."""
    location: str | None = None
    """Goes last, with whatever else is in it."""

    @classmethod
    def of(cls, checkpoint: CompletedCheckpoint) -> Self:
        """Return what goes with a completed checkpoint."""
        return cls(
            metadata_uri=checkpoint.metadata_uri,
            states=tuple(private_states(checkpoint.operator_states.values())),
            location=checkpoint.external_pointer,
        )


def location_of(handle: StreamStateHandle) -> tuple[str, ...]:
    """Return what tells bytes from other bytes: two handles of the same ones are deleted together."""
    if isinstance(handle, FileStateHandle):
        return ("file", handle.uri)
    if isinstance(handle, SegmentFileStateHandle):
        return ("segment", handle.uri, handle.logical_id)
    return ("inline", handle.name if isinstance(handle, ByteStreamStateHandle) else "")


def private_states(operator_states: Iterable[OperatorState]) -> Iterator[StreamStateHandle]:
    """Give each stream of state that belongs to one checkpoint alone."""
    for operator_state in operator_states:
        if operator_state.coordinator_state is not None:
            yield operator_state.coordinator_state
        for subtask_state in operator_state.subtask_states.values():
            yield from private_states_of_subtask(subtask_state)


def private_states_of_subtask(state: OperatorSubtaskState) -> Iterator[StreamStateHandle]:
    """Give each stream of a subtask's state that belongs to one checkpoint alone."""
    for operator_handle in (*state.managed_operator, *state.raw_operator):
        yield operator_handle.stream
    for keyed_handle in (*state.managed_keyed, *state.raw_keyed):
        yield from _private_streams(keyed_handle)


def _private_streams(handle: KeyedStateHandle) -> Iterator[StreamStateHandle]:
    if not isinstance(handle, IncrementalKeyedStateHandle):
        yield handle.stream
        return
    yield from (stream for _, stream in handle.private)
    if handle.meta is not None:
        yield handle.meta
