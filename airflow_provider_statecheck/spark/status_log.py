"""One line in the task's log for each step in the life of a checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from airflow_provider_statecheck.checkpoint.messages import AttemptGrant, PendingCheckpoint
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus

log = logging.getLogger(__name__)


class CheckpointLog:
    """
    Writes the lines of one attempt.

    :param job_name: The job.
    :param uid: The operator.
    :param epoch: The attempt.
    """

    def __init__(self, job_name: str, uid: str, epoch: int) -> None:
        self._stage = f"job {job_name!r}, operator {uid!r}"
        self._epoch = epoch
        self._of = f"of {self._stage}, attempt {epoch}"

    def registered(self, grant: AttemptGrant) -> None:
        """Say how the attempt starts."""
        start = "restores a checkpoint" if grant.is_restore else "starts from the beginning"
        log.info("Attempt %s of %s %s: %s", self._epoch, self._stage, start, grant.start_reason)
        if grant.warning:
            log.warning("%s", grant.warning)

    def triggered(self, pending: PendingCheckpoint) -> None:
        """Say that a checkpoint began."""
        log.info("Checkpoint %s %s: pending; goes to %s", pending.checkpoint_id, self._of, pending.location)

    def restored(self, checkpoint: CheckpointRecord) -> None:
        """Say which checkpoint the attempt starts from."""
        log.info("Checkpoint %s %s: restored; %s", checkpoint.checkpoint_id, self._of, describe_content(checkpoint))

    def completed(self, checkpoint: CheckpointRecord) -> None:
        """Say what a checkpoint holds and what it took."""
        log.info(
            "Checkpoint %s %s: completed in %.3f s; %s, %s bytes of them new",
            checkpoint.checkpoint_id,
            self._of,
            _seconds(checkpoint),
            describe_content(checkpoint),
            checkpoint.state_size_bytes,
        )

    def failed(self, checkpoint_id: int, error: BaseException) -> None:
        """Say why a checkpoint was not completed."""
        log.warning("Checkpoint %s %s: aborted; %s", checkpoint_id, self._of, error)

    def discarded(self, checkpoints: Iterable[CheckpointRecord]) -> None:
        """Say which checkpoints are gone, and that their end was subsumption or abortion."""
        for each in checkpoints:
            why = "subsumed" if each.status is CheckpointStatus.SUBSUMED else f"aborted ({each.failure_reason})"
            log.info("Checkpoint %s %s: %s; its bytes are deleted", each.checkpoint_id, self._of, why)


def describe_content(checkpoint: CheckpointRecord) -> str:
    """Return what a checkpoint holds, for people."""
    counts = checkpoint.counts
    if "splits" in counts:
        return f"{counts['splits']} of {counts['of_splits']} splits, {checkpoint.full_size_bytes} bytes"
    snapshots, items = counts.get("snapshots", 0), counts.get("items", 0)
    return f"{snapshots} snapshots, {items} finished items, {checkpoint.full_size_bytes} bytes"


def _seconds(checkpoint: CheckpointRecord) -> float:
    if checkpoint.completed_at is None:
        return 0.0
    return (checkpoint.completed_at - checkpoint.triggered_at).total_seconds()
