"""How a stage reaches its coordinator, whatever lies between them."""

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
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, JobRecord
from airflow_provider_statecheck.checkpoint.store import CheckpointPage, JobView


class CheckpointCoordinatorGateway(Protocol):
    """
    The coordinator as a stage sees it.

    One attempt calls :meth:`register` once, :meth:`confirm_restore` if it restored, then any number of
    :meth:`trigger` followed by :meth:`acknowledge` or :meth:`decline`, :meth:`confirm_discards` and
    :meth:`confirm_commits` after it carried out what a reply asked for, and :meth:`finish` at the end.
    Every call may be repeated after a lost reply: it takes effect once and answers with what is open *now*.
    Every call of an attempt that a newer one replaced raises ``StaleAttemptError`` and changes nothing.
    """

    def register(self, request: RegisterAttempt) -> AttemptGrant:
        """Fence all earlier attempts of the operator and say what to restore."""
        ...

    def adopt(self, request: AdoptAttempt) -> None:
        """Let a later try of the same task speak for an attempt that still runs."""
        ...

    def confirm_restore(self, request: ConfirmRestore) -> None:
        """Record what was restored and which candidates could not be."""
        ...

    def trigger(self, request: TriggerCheckpoint) -> PendingCheckpoint:
        """Draw the id of a new checkpoint."""
        ...

    def acknowledge(self, request: AcknowledgeCheckpoint) -> AcknowledgeReply:
        """Complete a checkpoint whose bytes are all on storage."""
        ...

    def decline(self, request: DeclineCheckpoint) -> OpenEffects:
        """Abort a checkpoint that will not be completed."""
        ...

    def confirm_discards(self, request: ConfirmDiscards) -> None:
        """Record that bytes are gone."""
        ...

    def confirm_commits(self, request: ConfirmCommits) -> OpenEffects:
        """Record that a sink committed what checkpoints hold, those before them too."""
        ...

    def finish(self, request: FinishAttempt) -> OpenEffects:
        """Close the attempt; its pins end."""
        ...

    def jobs(self) -> tuple[JobRecord, ...]:
        """Return all jobs, the most recently active first."""
        ...

    def describe(self, job_id: JobId) -> JobView:
        """Return a job as it stands."""
        ...

    def checkpoint(self, job_id: JobId, checkpoint_id: int) -> CheckpointRecord | None:
        """Return a checkpoint of a job, ``None`` if it has no row."""
        ...

    def checkpoints(self, job_id: JobId, page: CheckpointPage) -> tuple[CheckpointRecord, ...]:
        """Return a page of the checkpoints of a job, newest first."""
        ...

    def latest(self, job_id: JobId, operator_id: OperatorId) -> CheckpointRecord | None:
        """Return the newest completed checkpoint of an operator."""
        ...
