"""Completed checkpoints and the state that belongs to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.states.handles import (
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


class SnapshotPart(Protocol):
    """The checkpoint of one stage within a savepoint of the whole job, as its metadata describes it."""

    @property
    def named_bytes(self) -> int:
        """Return the size of all files that the part references, in bytes."""
        ...


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
    parts: tuple[SnapshotPart, ...] = ()
    """The checkpoints of the stages in a savepoint of the whole job."""
    properties: CheckpointProperties = field(default_factory=CheckpointProperties)
    external_pointer: str
    """The directory of the checkpoint."""
    metadata_uri: str
    metadata_size: int = 0
    metadata_sha256: str = ""
    checkpointed_size: int = 0
    """The size of the state that this checkpoint added, in bytes."""

    def __post_init__(self) -> None:
        if self.completed_at < self.triggered_at:
            raise InvalidConfigurationError(
                f"Expected checkpoint {self.checkpoint_id} to be completed after it was triggered at {self.triggered_at}, "
                f"found {self.completed_at}."
            )

    @property
    def state_size(self) -> int:
        """Return the size of all referenced state in bytes."""
        states = sum(state.state_size for state in self.operator_states.values())
        return states + sum(part.named_bytes for part in self.parts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CompletedCheckpoint):
            return NotImplemented
        return (self.job_id, self.checkpoint_id) == (other.job_id, other.checkpoint_id)

    def __hash__(self) -> int:
        return hash((self.job_id, self.checkpoint_id))


def location_of(handle: StreamStateHandle) -> tuple[str, ...]:
    """Return a key of the stored bytes; handles with equal keys refer to the same bytes."""
    if isinstance(handle, FileStateHandle):
        return ("file", handle.uri)
    if isinstance(handle, SegmentFileStateHandle):
        return ("segment", handle.uri, handle.logical_id)
    return ("inline", handle.name)


def private_states(operator_states: Iterable[OperatorState]) -> Iterator[StreamStateHandle]:
    """Yield the state streams that belong to one checkpoint only."""
    for operator_state in operator_states:
        if operator_state.coordinator_state is not None:
            yield operator_state.coordinator_state
        for subtask_state in operator_state.subtask_states.values():
            yield from private_states_of_subtask(subtask_state)


def private_states_of_subtask(state: OperatorSubtaskState) -> Iterator[StreamStateHandle]:
    """Yield the streams of a subtask's state that belong to one checkpoint only."""
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
