"""What a backend is told about the subtask that it works for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.schemas import OperatorSchemas


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEnvironment:
    """One subtask of one attempt."""

    storage: CheckpointStorage
    """From which restored state is read."""
    subtask_index: int
    parallelism: int
    max_parallelism: int
    now_ms: Callable[[], int]
    """Gives the time by which state expires; by default the logical date of the run, so that a rerun finds the same."""
    epoch: int
    """Of the attempt."""
    operator_name: str = ""
    """What users call the operator, for errors."""
    schemas: OperatorSchemas | None = None
    """What the restored state was, if state is restored."""
