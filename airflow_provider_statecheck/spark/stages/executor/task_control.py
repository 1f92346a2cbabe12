"""Messages between the driver and Spark tasks: descriptions of work, reports and storage."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_statecheck.checkpoint.codec import decode, encode
from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import CheckpointMetaData
from airflow_provider_statecheck.checkpoint.states.handles import (
    OperatorState,
    OperatorSubtaskState,
    StreamStateHandle,
    streams_of_subtask,
)
from airflow_provider_statecheck.spark.snapshots.executor_io import HiddenOptions
from airflow_provider_statecheck.spark.stages.planning import PlannedOperator
from airflow_provider_statecheck.state.keyed.abstract_backend import StateSize
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import AllowedLocations
from airflow_provider_statecheck.storage.views.loading import load_checkpoint_storage
from airflow_provider_statecheck.storage.views.state_files import (
    CheckpointStorageWorkerView,
    FileMergingSnapshotManager,
)

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.schemas import OperatorSchemas


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """Result of one Spark task of a vertex."""

    vertex: int
    subtask: int
    states: tuple[OperatorState, ...] = ()
    """State of the functions, with this subtask only; functions without state are omitted."""
    committables: tuple[dict[str, Any], ...] = ()
    """Committables of the sink writer."""
    keys: int = 0
    """Number of keys of declared aggregates, summed over the tables that were processed."""
    rows: int = 0
    """Number of input elements."""
    new_bytes: int = 0
    """Size of the state files that were written."""
    sizes: Mapping[str, tuple[StateSize, ...]] = field(default_factory=dict)
    """Sizes of single states of this subtask by the uids of the operators, for display."""
    snapshot_seconds: float = 0.0
    """Time to write the state."""

    def encode(self) -> bytes:
        """Return the report as JSON."""
        values = {
            "vertex": self.vertex,
            "subtask": self.subtask,
            "states": encode(self.states),
            "committables": list(self.committables),
            "rows": self.rows,
            "keys": self.keys,
            "new_bytes": self.new_bytes,
            "sizes": {
                uid: [[each.name, each.keys, each.size_bytes] for each in found] for uid, found in self.sizes.items()
            },
            "snapshot_seconds": self.snapshot_seconds,
        }
        return json.dumps(values, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> TaskReport:
        """Decode a report."""
        values = json.loads(data)
        states = decode(tuple[OperatorState, ...], values["states"])
        sizes = {uid: tuple(StateSize(*each) for each in found) for uid, found in values["sizes"].items()}
        decoded = {"states": states, "committables": tuple(values["committables"]), "sizes": sizes}
        return cls(**{**values, **decoded})


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotMoment:
    """Checkpoint for which the tasks of an increment save their state."""

    checkpoint: CheckpointMetaData
    """With id 0 for an increment without a checkpoint."""
    is_end_of_input: bool = field(default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTask(PlannedOperator):
    """A function and its initial state, for Spark tasks."""

    states: Mapping[int, OperatorSubtaskState] = field(default_factory=dict)
    """Initial state by subtask."""
    schemas: OperatorSchemas | None = None
    """Types of the initial state."""
    restored_checkpoint_id: int | None = None
    """Checkpoint that saved the initial state, 0 for an increment without one; ``None`` if the function never ran."""

    @classmethod
    def of(cls, operator: PlannedOperator, **state: Any) -> Self:
        """
        Return the task of a planned function.

        :param state: Fields of the initial state, or others that replace those of the plan.
        """
        return cls(**{each.name: getattr(operator, each.name) for each in fields(operator)} | state)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskContext:
    """Properties of a subtask that all functions of its vertex share."""

    job_id: str
    subtask: int = 0
    parallelism: int
    max_parallelism: int
    epoch: int
    now_ms: int
    """Time for the expiry of state, in milliseconds."""
    logical_date: datetime | None
    state_backend: Any


@dataclass(frozen=True, slots=True)
class TaskStorage:
    """Description of a storage that another process can open; its ``repr`` hides credentials."""

    base_uri: str
    options: HiddenOptions
    allowed: AllowedLocations

    @classmethod
    def of(cls, storage: CheckpointStorage) -> TaskStorage:
        """Describe a storage of the driver."""
        return cls(storage.base_uri, HiddenOptions(storage.options), storage.allowed)

    def open(self) -> CheckpointStorage:
        """Open the storage in this process."""
        return CheckpointStorage.open(self.base_uri, **self.options.reveal()).within(self.allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWriting:
    """Description of the checkpoint storage that the tasks of an attempt write to."""

    attempt: AttemptRef
    config: CheckpointConfig

    def worker_view(
        self, storage: CheckpointStorage, restored: Iterable[OperatorSubtaskState]
    ) -> CheckpointStorageWorkerView:
        """
        Return the view of a subtask.

        :param restored: Initial state of the subtask.
        :raises InvalidConfigurationError: if the configured storage cannot be loaded.
        """
        view = load_checkpoint_storage(storage, self.attempt, self.config)
        is_merging = self.config.file_merging_enabled
        manager = FileMergingSnapshotManager(self.attempt.epoch, self.config) if is_merging else None
        return view.to_file_merging_storage(manager, _Restored(tuple(restored)))


@dataclass(frozen=True, slots=True)
class _Restored:
    """Environment of a subtask with its initial state."""

    states: tuple[OperatorSubtaskState, ...]

    @property
    def restored_streams(self) -> Iterator[StreamStateHandle]:
        return (stream for state in self.states for stream in streams_of_subtask(state))
