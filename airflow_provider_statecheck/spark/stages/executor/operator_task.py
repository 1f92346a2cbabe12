"""What the driver tells a task about one function of its vertex."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.states.operator_state import OperatorSubtaskState
from airflow_provider_statecheck.spark.stages.vertices import FunctionNode

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer
    from airflow_provider_statecheck.state.schemas import OperatorSchemas


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
