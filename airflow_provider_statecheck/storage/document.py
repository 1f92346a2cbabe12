"""What one checkpoint holds, as it is written to ``_metadata``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.checkpoint.states.operator_state import MasterState, OperatorState


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotHandle:
    """One DataFrame snapshot, which several checkpoints may name."""

    name: str
    scope: tuple[tuple[str, str], ...] = ()
    """The loops and items around it, outermost first."""
    uri: str
    manifest_size: int
    manifest_sha256: str
    size_bytes: int
    rows: int | None
    files: int
    fingerprint: str
    """Of the code and the snapshots that it was built from."""
    epoch: int
    """Of the attempt that wrote it."""
    seconds: float
    """What computing and writing it took."""
    created_at: str
    lineage: str = ""
    """Set where it replaces a damaged snapshot, so that what was built from that one counts as changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineStateHandle:
    """State small enough to travel in the metadata itself."""

    value: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDocument:
    """All that a restore needs to know; no code, nothing to unpickle."""

    job_id: str
    job_name: str
    operator_id: str
    uid: str
    checkpoint_id: int
    epoch: int
    generation: int
    snapshots: tuple[SnapshotHandle, ...]
    state: InlineStateHandle | FileStateHandle
    created_at: str
    properties: CheckpointProperties = field(default_factory=CheckpointProperties)
    operator_states: tuple[OperatorState, ...] = ()
    """Of the operators whose state is aligned in this checkpoint."""
    master_states: tuple[MasterState, ...] = ()
    has_commit: bool = False
    """Whether it holds what a sink commits once the checkpoint is completed."""
    request_key: str = ""
    """The key of the message that triggered it, as in its row; empty for a savepoint that has no row."""
    relocatable: bool | None = field(default=None, compare=False)
    """
    Whether it still loads when it is moved: a savepoint with its directory, a checkpoint with that of its job. Told by the
    file; ``None`` for a document that was not read from one.
    """

    @property
    def named_bytes(self) -> int:
        """Return the size of the snapshots and of the state of operators that it names."""
        of_snapshots = sum(handle.size_bytes for handle in self.snapshots)
        return of_snapshots + sum(state.state_size for state in self.operator_states)
