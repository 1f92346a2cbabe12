"""How many failed checkpoints a stage bears: by default any number, each with a warning."""

from __future__ import annotations

import logging
from typing import Final

from airflow_provider_statecheck.checkpoint.coordination.failure_manager import (
    UNKNOWN_CHECKPOINT_ID,
    UNLIMITED_TOLERABLE_FAILURES,
    CheckpointFailureManager,
)
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.exceptions import StateCheckError

log = logging.getLogger(__name__)

UNLIMITED: Final = -1
_CHECKPOINT: Final = CheckpointProperties()


class FailedCheckpoints:
    """
    Counts checkpoints of one stage that failed one after another.

    :param tolerable: How many may fail in a row; ``-1`` for any number.
    """

    def __init__(self, tolerable: int = UNLIMITED) -> None:
        self._tolerable = UNLIMITED_TOLERABLE_FAILURES if tolerable == UNLIMITED else tolerable
        self._manager = self._new_manager()

    def succeeded(self) -> None:
        """Start counting anew."""
        self._manager = self._new_manager()

    def failed(self, error: StateCheckError, checkpoint_id: int = UNKNOWN_CHECKPOINT_ID) -> None:
        """
        Count a failure and say so.

        :param checkpoint_id: Of the checkpoint, if it had one.
        :raises CheckpointDeclinedError: if it is one too many; it lists the failures, and its cause is the last one.
        """
        self._manager.handle_checkpoint_exception(
            CheckpointException(_counted_reason(error), error),
            properties=_CHECKPOINT,
            checkpoint_id=checkpoint_id,
        )
        which = "A checkpoint" if checkpoint_id == UNKNOWN_CHECKPOINT_ID else f"Checkpoint {checkpoint_id}"
        log.warning("%s failed, the stage goes on without it: %s", which, error)

    def _new_manager(self) -> CheckpointFailureManager:
        return CheckpointFailureManager(self._tolerable, _FailStage())


class _FailStage:
    """The stage fails where it took the checkpoint."""

    def fail_job(self, cause: Exception) -> None:
        raise cause

    def fail_job_due_to_task_failure(self, cause: Exception, attempt_id: str) -> None:
        raise cause


def _counted_reason(error: StateCheckError) -> CheckpointFailureReason:
    """Return a reason that counts, for the stage has lost a checkpoint whatever the reason is."""
    reason = vars(error).get("reason")
    if isinstance(reason, CheckpointFailureReason) and not reason.is_tolerated_silently:
        return reason
    return CheckpointFailureReason.IO_EXCEPTION
