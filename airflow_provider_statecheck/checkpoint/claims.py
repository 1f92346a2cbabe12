"""Who may delete the files of a savepoint that was restored."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.exceptions import SnapshotClaimedError


class RestoreMode(StrEnum):
    """Whose a restored snapshot is."""

    NO_CLAIM = "no_claim"
    """Its owner's: nothing of it is deleted, and new checkpoints name none of its files."""
    CLAIM = "claim"
    """The restoring job's, which deletes it when it is subsumed and no file of it is in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRecord:
    """One operator owns a snapshot; a second claim of it is refused."""

    pointer: str
    """The snapshot's directory."""
    job_id: JobId
    operator_id: OperatorId
    claimed_at: datetime


def already_claimed(pointer: str) -> SnapshotClaimedError:
    """Return the error that says whose a snapshot is not."""
    return SnapshotClaimedError(
        f"Expected the savepoint {pointer} to be free, but another job claimed it and may delete it at any time; make "
        f"another savepoint and restore that one.",
        pointer=pointer,
    )
