"""Wait of a stage for the savepoint with which its whole job stops."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from airflow_provider_statecheck.checkpoint.gateway import CheckpointCoordinatorGateway
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus
from airflow_provider_statecheck.exceptions import CoordinatorUnavailableError, StoppedWithSavepointError
from airflow_provider_statecheck.storage.uris import redact

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 5.0
_IN_PROGRESS = (CheckpointStatus.PENDING, CheckpointStatus.FINALIZING)


class JobStop:
    """
    Holds a stage until the savepoint with which its job stops has ended: the stage stops with it, or continues if it failed.

    :param gateway: Gateway to the coordinator.
    :param monotonic: Clock for durations, in seconds.
    :param pause: Waits for a number of seconds; by default until :meth:`release` at the latest.
    :param missed: Savepoint with which the job stops, or has stopped, that an earlier try of the stage did not wait for to the
        end.
    """

    def __init__(
        self,
        gateway: CheckpointCoordinatorGateway,
        monotonic: Callable[[], float],
        pause: Callable[[float], object] | None = None,
        missed: CheckpointRecord | None = None,
    ) -> None:
        self._gateway = gateway
        self._monotonic = monotonic
        self._released = threading.Event()
        self._pause = pause or self._released.wait
        self._missed = missed

    def wait_for(self, savepoint: CheckpointRecord | None) -> None:
        """
        Wait for the end of a savepoint with which the job stops.

        :param savepoint: The pending savepoint; ``None`` if the job does not stop.
        :raises StoppedWithSavepointError: if the savepoint is complete.
        """
        # The savepoint may have become complete while the retry had no checkpoint yet.
        savepoint, self._missed = savepoint or self._missed, None
        if savepoint is None:
            return
        log.info("The job stops with savepoint %s; the stage waits until it is complete.", savepoint.checkpoint_id)
        ended = self._ended(savepoint)
        if ended is not None and ended.completed_at is not None:
            raise _stopped(ended)
        if self._released.is_set():
            return
        reason = ended.failure_message if ended is not None and ended.failure_message else "it was not taken in time"
        log.warning("The job does not stop, because savepoint %s failed: %s", savepoint.checkpoint_id, reason)

    def release(self) -> None:
        """Let a thread that waits go on, because the attempt ends."""
        self._released.set()

    def _ended(self, savepoint: CheckpointRecord) -> CheckpointRecord | None:
        # Only a process that takes savepoints lets them expire, and there may be none.
        deadline = self._monotonic() + (savepoint.expires_at - savepoint.triggered_at).total_seconds()
        row: CheckpointRecord | None = savepoint
        while row is not None and row.status in _IN_PROGRESS and self._monotonic() < deadline:
            if self._released.is_set():
                return row
            self._pause(_PAUSE_SECONDS)
            row = self._read(row)
        return row

    def _read(self, known: CheckpointRecord) -> CheckpointRecord | None:
        """Return the row as it is now, or as it was known if the coordinator is unavailable."""
        try:
            return self._gateway.checkpoint(known.job_id, known.checkpoint_id)
        except CoordinatorUnavailableError as error:
            # The wait may last for hours, and an outage in them must not cost the stage its attempt.
            log.warning("Could not read whether savepoint %s is complete: %s", known.checkpoint_id, error)
            return known


def _stopped(savepoint: CheckpointRecord) -> StoppedWithSavepointError:
    return StoppedWithSavepointError(
        f"The stage stopped with a savepoint of its job, as requested: {redact(savepoint.location)}. Clear the task to resume "
        f"from its last checkpoint, or restore the job from the savepoint.",
        pointer=redact(savepoint.location),
    )
