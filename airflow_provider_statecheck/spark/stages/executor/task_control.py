"""Messages between the driver and its tasks, and the storage that a task opens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.states.handles import (
    CheckpointedStateScope,
    OperatorState,
    OperatorSubtaskState,
)
from airflow_provider_statecheck.spark.snapshots.executor_io import HiddenOptions
from airflow_provider_statecheck.spark.stages.planning import FunctionNode
from airflow_provider_statecheck.storage.allowed_locations import AllowedLocations
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.state_json import decode_operator_state, encode_operator_state
from airflow_provider_statecheck.storage.views.state_streams import FsCheckpointStateOutputStream, StateWriting

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer
    from airflow_provider_statecheck.state.schemas import OperatorSchemas


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """The end of one task of one vertex."""

    vertex: int
    subtask: int
    states: tuple[OperatorState, ...] = ()
    """Of the functions, each with this subtask alone; of one without state there is none."""
    committables: tuple[dict[str, Any], ...] = ()
    """What the sink has staged."""
    keys: int = 0
    """How many keys declared aggregates had in them, summed over what was worked on at once."""
    rows: int = 0
    """How many elements came in."""
    new_bytes: int = 0
    """How many bytes of state were written."""

    def encode(self) -> bytes:
        """Return the report as JSON."""
        values = {
            "vertex": self.vertex,
            "subtask": self.subtask,
            "states": [encode_operator_state(state, str) for state in self.states],
            "committables": list(self.committables),
            "rows": self.rows,
            "keys": self.keys,
            "new_bytes": self.new_bytes,
        }
        return json.dumps(values, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> TaskReport:
        """Return the report that was encoded."""
        values = json.loads(data)
        states = tuple(decode_operator_state(state, str) for state in values["states"])
        return cls(**{**values, "states": states, "committables": tuple(values["committables"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotMoment:
    """Which checkpoint the state of an increment is meant for."""

    checkpoint_id: int
    timestamp: int
    """Milliseconds since 1970."""
    is_end_of_input: bool = field(default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTask:
    """One function and the state that it begins with."""

    uid: str
    """Its own within the job."""
    operator_id: str
    node: FunctionNode
    input_schema: Any
    """Arrow schema of its elements."""
    output_schema: Any
    """Of what it gives; ``None`` for nothing."""
    key_serializer: KeySerializer | None = None
    """Where it stands right behind a key."""
    time_column: str | None = None
    """Which of its columns has the time of an element."""
    states: Mapping[int, OperatorSubtaskState] = field(default_factory=dict)
    """By subtask."""
    schemas: OperatorSchemas | None = None
    """What that state is."""
    restored_checkpoint_id: int | None = None
    """With which that state was saved, 0 for an increment without a checkpoint; ``None`` where the function never ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlace:
    """Where a task runs, the same for all functions of its vertex."""

    job_id: str
    subtask: int
    parallelism: int
    max_parallelism: int
    epoch: int
    now_ms: int
    """By which state expires."""
    logical_date: datetime | None
    state_backend: Any


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


@dataclass(frozen=True, slots=True)
class TaskStorage:
    """What another process needs to open the same storage; it shows no credentials."""

    base_uri: str
    options: HiddenOptions
    allowed: AllowedLocations

    @classmethod
    def of(cls, storage: CheckpointStorage) -> TaskStorage:
        """Describe a storage of the driver."""
        return cls(storage.base_uri, HiddenOptions(storage.options), storage.allowed)

    def open(self) -> CheckpointStorage:
        """Open it in this process."""
        return CheckpointStorage.open(self.base_uri, **self.options.reveal()).within(self.allowed)
