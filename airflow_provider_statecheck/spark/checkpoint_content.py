"""What a stage wants one checkpoint to hold."""

from __future__ import annotations

from collections.abc import Mapping, Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_statecheck.checkpoint.states.operator_state import OperatorState
from airflow_provider_statecheck.storage.document import SnapshotHandle


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointContent:
    """Everything whose bytes are on storage by now."""

    snapshots: tuple[SnapshotHandle, ...] = ()
    """All live ones."""
    state: dict[str, Any] = field(default_factory=dict)
    """The rest of the state as JSON."""
    operator_states: tuple[OperatorState, ...] = ()
    """Of the functions of a stateful stage."""
    has_commit: bool = False
    """Whether a sink has to commit something once the checkpoint is completed."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """For people."""
    new_bytes: int = 0
    """How many bytes are new since the last checkpoint."""
    increment_seconds: float = 0.0
    """How long the increment took that it holds, if its id was drawn before."""
    pinned: AbstractSet[str] = frozenset()
    """URIs of snapshots that must stay although no checkpoint may name them."""

    @property
    def size_bytes(self) -> int:
        """Return the size of what the checkpoint names."""
        of_snapshots = sum(handle.size_bytes for handle in self.snapshots)
        return of_snapshots + sum(state.state_size for state in self.operator_states)
