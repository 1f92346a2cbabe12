"""What the operators of an aligned checkpoint have answered."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgementRecord:
    """The part that one operator has in a checkpoint of several; its state is on storage, however many subtasks it has."""

    job_id: JobId
    checkpoint_id: int
    operator_id: OperatorId
    attempt_id: str
    """Which try of the operator's task is to answer."""
    is_finished: bool = False
    """Whether the operator had ended when the checkpoint was triggered, and so has nothing to answer."""
    manifest_uri: str | None = None
    """Where its state is described; ``None`` until it answers, and for an operator without state."""
    manifest_size: int = 0
    manifest_sha256: str = ""
    state_size_bytes: int = 0
    full_size_bytes: int = 0
    metrics: dict[str, int] = field(default_factory=dict)
    acknowledged_at: datetime | None = None

    @property
    def is_acknowledged(self) -> bool:
        """Tell whether nothing is expected of the operator any more."""
        return self.is_finished or self.acknowledged_at is not None
