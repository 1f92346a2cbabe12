"""How often the tries of an operator failed, as its job remembers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.job_view import JobView
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.records import AttemptRecord, AttemptStatus
from airflow_provider_statecheck.spark.kept import stopping_savepoint

_ASSUMED_SECONDS = 24 * 3_600.0
"""What one failure is assumed in, before there is any history; it counts as one more failure in so much more time."""
_FAILED = (AttemptStatus.FAILED, AttemptStatus.FENCED)


@dataclass(frozen=True, slots=True)
class FailureHistory:
    """Failures, and how long the tries ran in which they happened."""

    failures: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, view: JobView, operator_id: OperatorId) -> FailureHistory:
        """
        Return the history of an operator, its current try included.

        A try that another one took over from is a failure too: it was lost without a word.
        """
        mine = [a for a in view.attempts if a.operator_id == operator_id]
        failures = sum(a.status in _FAILED and not _is_stop(view, a) for a in mine)
        return cls(failures, sum(_seconds(view, attempt) for attempt in mine))

    @property
    def mean_time_between_failures(self) -> float:
        """Return the expected seconds from one failure to the next."""
        return (_ASSUMED_SECONDS + self.seconds) / (1 + self.failures)


def measured_costs(view: JobView, operator_id: OperatorId) -> tuple[float, ...]:
    """Return what the checkpoints of an operator took that its job remembers, in seconds, oldest first."""
    completed = (
        c for c in view.of_operator(operator_id) if c.completed_at is not None and not c.properties.is_savepoint
    )
    return tuple((c.completed_at - c.triggered_at).total_seconds() for c in completed if c.completed_at is not None)


def _is_stop(view: JobView, attempt: AttemptRecord) -> bool:
    reference = AttemptRef(job_id=attempt.job_id, operator_id=attempt.operator_id, epoch=attempt.epoch)
    return stopping_savepoint(view, reference) is not None


def _seconds(view: JobView, attempt: AttemptRecord) -> float:
    return (_end(view, attempt) - attempt.registered_at).total_seconds()


def _end(view: JobView, attempt: AttemptRecord) -> datetime:
    if attempt.status is AttemptStatus.FENCED:
        # It ended when the next one came, perhaps long after it was lost.
        return max(_signs_of_life(view, attempt), default=attempt.registered_at)
    return attempt.ended_at or view.read_at


def _signs_of_life(view: JobView, attempt: AttemptRecord) -> Iterable[datetime]:
    mine = (c for c in view.of_operator(attempt.operator_id) if c.epoch == attempt.epoch)
    return (c.completed_at or c.triggered_at for c in mine)
