"""The lines that a task has in its log for the checkpoints of a driver in another process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus
from airflow_provider_statecheck.checkpoint.statistics.operator_statistics import OperatorStatistics
from airflow_provider_statecheck.exceptions import StateCheckError
from airflow_provider_statecheck.spark.status_log import CheckpointLog

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.job_view import JobView
    from airflow_provider_statecheck.checkpoint.messages import AttemptRef

log = logging.getLogger(__name__)

_SECONDS_BETWEEN_LOOKS = 10.0
_GRACE_SECONDS = 1.0


class DriverCheckpoints:
    """
    Follows the checkpoints of one attempt in the rows of its job and logs a line for each, as the driver would.

    :param view: Gives the rows of the job, ``None`` if there are none.
    :param attempt: The attempt that the driver speaks for.
    :param checkpoint_log: Writes the lines.
    """

    def __init__(self, view: Callable[[], JobView | None], attempt: AttemptRef, checkpoint_log: CheckpointLog) -> None:
        self._view = view
        self._attempt = attempt
        self._log = checkpoint_log
        self._told: set[int] = set()
        self._restored: int | None = None

    def skip(self) -> None:
        """Pass over what an earlier try of the task has logged already."""
        view = self._look()
        if view is not None:
            self._restored = self._restored_id(view)
            self._told.update(c.checkpoint_id for c in self._ended(view))

    def tell(self) -> None:
        """Log what has happened since the last call."""
        view = self._look()
        if view is not None:
            self._tell_restored(view)
            self._tell_ended(view)

    def _look(self) -> JobView | None:
        try:
            return self._view()
        except StateCheckError as error:
            log.debug("The checkpoints of the driver are looked at again later: %s", error)
            return None

    def _tell_restored(self, view: JobView) -> None:
        restored = self._restored_id(view)
        row = next((c for c in view.checkpoints if c.checkpoint_id == restored), None)
        if row is not None and restored != self._restored:
            self._restored = restored
            self._log.restored(row)

    def _tell_ended(self, view: JobView) -> None:
        for checkpoint in self._ended(view):
            if checkpoint.checkpoint_id in self._told:
                continue
            self._told.add(checkpoint.checkpoint_id)
            if checkpoint.completed_at is not None:
                self._log.completed(checkpoint)
            else:
                self._log.failed(checkpoint)

    def _restored_id(self, view: JobView) -> int | None:
        # The row of the attempt names a candidate until the driver confirms; the statistics know only what was confirmed.
        record = next((s for s in view.statistics if s.operator_id == self._attempt.operator_id), None)
        latest = OperatorStatistics.of(record).latest_restored
        return latest.checkpoint_id if latest is not None and latest.epoch == self._attempt.epoch else None

    def _ended(self, view: JobView) -> list[CheckpointRecord]:
        mine = (c for c in view.of_operator(self._attempt.operator_id) if c.epoch == self._attempt.epoch)
        return [c for c in mine if not c.properties.is_savepoint and (c.completed_at is not None or _has_failed(c))]


@contextmanager
def repeatedly(tell: Callable[[], None], every_seconds: float = _SECONDS_BETWEEN_LOOKS) -> Iterator[None]:
    """
    Call something every few seconds while the block runs, in a thread, and once more behind it.

    :param tell: What to call; it raises nothing.
    """
    over = threading.Event()

    def work() -> None:
        while not over.wait(every_seconds):
            tell()

    thread = threading.Thread(target=work, daemon=True, name="statecheck-driver-checkpoints")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_GRACE_SECONDS)
        if not thread.is_alive():
            tell()


def _has_failed(checkpoint: CheckpointRecord) -> bool:
    is_aborted = checkpoint.status is CheckpointStatus.ABORTED
    return is_aborted and checkpoint.failure_reason != CheckpointFailureReason.ATTEMPT_ENDED.value
