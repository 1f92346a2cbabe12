"""Interface between a stage and its coordinator, in process or over HTTP."""

from __future__ import annotations

from typing import Protocol

from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.messages import (
    AcknowledgeCheckpoint,
    AcknowledgeReply,
    AdoptAttempt,
    AttemptGrant,
    ConfirmCommits,
    ConfirmDiscards,
    ConfirmRestore,
    DeclineCheckpoint,
    FinishAttempt,
    OpenEffects,
    PendingCheckpoint,
    RegisterAttempt,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, JobRecord, RowsVersion
from airflow_provider_statecheck.checkpoint.store import CheckpointPage, JobView, LatestCheckpoints


class CheckpointCoordinatorGateway(Protocol):
    """
    Calls of a stage to its coordinator, and the table from which ``gateway.verbs`` derives the API over HTTP.

    An attempt calls :meth:`register` once and :meth:`confirm_restore` after a restore. For each checkpoint it calls
    :meth:`trigger`, then :meth:`acknowledge` or :meth:`decline`. It confirms the effects that it carried out with
    :meth:`confirm_discards` and :meth:`confirm_commits`, and ends with :meth:`finish`.

    All calls are idempotent: a call that is repeated after a lost reply takes effect once and returns the effects that are
    open now. Calls of a replaced attempt raise ``StaleAttemptError`` and change nothing.
    """

    def register(self, request: RegisterAttempt) -> AttemptGrant:
        """Fence all earlier attempts of the operator and return the candidates to restore."""
        ...

    def adopt(self, request: AdoptAttempt) -> None:
        """Transfer a running attempt to a later try of the same task."""
        ...

    def confirm_restore(self, request: ConfirmRestore) -> None:
        """Record the restored checkpoint and the candidates that could not be restored."""
        ...

    def trigger(self, request: TriggerCheckpoint) -> PendingCheckpoint:
        """Allocate the id of a new checkpoint."""
        ...

    def acknowledge(self, request: AcknowledgeCheckpoint) -> AcknowledgeReply:
        """Complete a checkpoint whose files are all on storage."""
        ...

    def decline(self, request: DeclineCheckpoint) -> OpenEffects:
        """Abort a pending checkpoint."""
        ...

    def confirm_discards(self, request: ConfirmDiscards) -> None:
        """Record that the files of ended checkpoints were deleted."""
        ...

    def confirm_commits(self, request: ConfirmCommits) -> OpenEffects:
        """Record that a sink committed the output of checkpoints and of all older ones."""
        ...

    def finish(self, request: FinishAttempt) -> OpenEffects:
        """Close the attempt and release its pins."""
        ...

    def jobs(self) -> tuple[JobRecord, ...]:
        """Return all jobs, the most recently active first."""
        ...

    def describe(self, job_id: JobId) -> JobView:
        """Return a job with its newest checkpoints and all checkpoints whose files may still exist."""
        ...

    def checkpoint(self, job_id: JobId, checkpoint_id: int) -> CheckpointRecord | None:
        """Return a checkpoint of a job, or ``None`` if it has no row."""
        ...

    def checkpoints(self, job_id: JobId, page: CheckpointPage) -> tuple[CheckpointRecord, ...]:
        """Return a page of the checkpoints of a job, newest first; its last id is ``before`` of the next page."""
        ...

    def latest(self, job_id: JobId, operator_id: OperatorId) -> CheckpointRecord | None:
        """Return the newest completed checkpoint of an operator, or ``None`` if there is none."""
        ...

    def latest_checkpoints(self, job_id: JobId, known_version: RowsVersion | None = None) -> LatestCheckpoints | None:
        """Return the newest readable checkpoint of each operator, or ``None`` if the version is the known one."""
        ...
