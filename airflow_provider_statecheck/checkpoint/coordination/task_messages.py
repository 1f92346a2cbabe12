"""What a task answers when it was told to take its part of an aligned checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.states.operator_state import OperatorState


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgeMessage:
    """The part that one operator has in a checkpoint; its bytes are on storage before this is sent."""

    job_id: JobId
    attempt_id: str
    """Which try of the operator's task answers."""
    checkpoint_id: int
    metrics: dict[str, int] = field(default_factory=dict)
    state: OperatorState | None = None
    """The state of all its subtasks, ``None`` for an operator without state."""
    finished_subtasks: frozenset[int] = frozenset()
    """Subtasks that had ended before the checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclineMessage:
    """An operator will not take its part of a checkpoint."""

    job_id: JobId
    attempt_id: str
    checkpoint_id: int
    cause: CheckpointException = field(
        default_factory=lambda: CheckpointException(CheckpointFailureReason.CHECKPOINT_DECLINED)
    )
