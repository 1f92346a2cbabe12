"""A checkpoint that is complete: Flink's ``CompletedCheckpoint``."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.states.operator_state import MasterState, OperatorState
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
