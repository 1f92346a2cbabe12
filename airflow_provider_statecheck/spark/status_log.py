"""The lines of an attempt in its log: how it starts, and one line for each checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

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
        log.debug("Checkpoint %s %s: pending; goes to %s", pending.checkpoint_id, self._of, pending.location)

    def restored(self, checkpoint: CheckpointRecord) -> None:
        """Say which checkpoint the attempt starts from."""
        log.info("Checkpoint %s %s: restored; %s", checkpoint.checkpoint_id, self._of, describe_content(checkpoint))

    def completed(self, checkpoint: CheckpointRecord) -> None:
        """Say what a checkpoint holds and what it took."""
        log.info(
            "Checkpoint %s %s: completed in %.3f s; %s, %s of them new",
            checkpoint.checkpoint_id,
            self._of,
            _seconds(checkpoint),
            describe_content(checkpoint),
            checkpoint.state_size_bytes,
        )

    def failed(self, checkpoint: CheckpointRecord) -> None:
        """Say why a checkpoint of a driver in another process was not completed."""
        log.warning("Checkpoint %s %s: failed; %s", checkpoint.checkpoint_id, self._of, checkpoint.failure_message)

    def discarded(self, checkpoints: Iterable[CheckpointRecord]) -> None:
        """Say which checkpoints were deleted; only an unfinished one of an earlier attempt has no line of its own yet."""
        for each in checkpoints:
            is_news = each.status is CheckpointStatus.ABORTED and each.epoch != self._epoch
            log.log(
                logging.INFO if is_news else logging.DEBUG,
                "Checkpoint %s of %s, attempt %s: %s; its bytes are deleted",
                each.checkpoint_id,
                self._stage,
                each.epoch,
                "subsumed" if each.status is CheckpointStatus.SUBSUMED else f"not completed ({each.failure_message})",
            )


def describe_content(checkpoint: CheckpointRecord) -> str:
    """Return what a checkpoint holds, for people."""
    counts = checkpoint.counts
    size = f"{checkpoint.full_size_bytes} bytes"
    if "splits" in counts:
        return f"{counts['splits']} of {counts['of_splits']} splits, {size}"
    return f"{_number_of('snapshot', counts)}, {_number_of('finished item', counts, 'items')}, {size}"


def _number_of(what: str, counts: Mapping[str, int], key: str | None = None) -> str:
    number = counts.get(key or f"{what}s", 0)
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _seconds(checkpoint: CheckpointRecord) -> float:
    if checkpoint.completed_at is None:
        return 0.0
    return (checkpoint.completed_at - checkpoint.triggered_at).total_seconds()
