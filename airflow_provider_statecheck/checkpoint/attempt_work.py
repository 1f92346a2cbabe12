"""Work, calls and rates of the newest attempt of an operator, and the cost of its checkpoints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary
from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.records import AttemptRecord, CheckpointRecord, Transport
from airflow_provider_statecheck.checkpoint.store import JobView


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptWork:
    """Work of an attempt, as it was last reported."""

    computing: str | None = None
    """Step, item of a loop or increment; ``None`` if the attempt has ended, or is between two of them."""
    computing_since: datetime | None = None
    """``None`` as well if the driver sent no possible time."""
    rows_per_second: float | None = None
    """``None`` if it is unknown, or the work does not read rows one after the other."""
    checkpoint_share: float | None = None
    """Part of the time of the task that checkpointing has taken, from 0 to 1; ``None`` if it is unknown."""
    transport: Transport | None = None
    """How its driver calls the coordinator; ``None`` if the attempt has ended, or it is unknown."""
    answered_at: datetime | None = None
    """Time of :func:`last_answer`; ``None`` if the attempt has ended."""


def work_of(view: JobView, operator_id: OperatorId) -> AttemptWork:
    """Return the work of the newest attempt of an operator; without values if nothing is known."""
    attempts = [attempt for attempt in view.attempts if attempt.operator_id == operator_id]
    if not attempts:
        return AttemptWork()
    attempt = max(attempts, key=lambda each: each.epoch)
    own = attempt.restored_summary or CheckpointSummary()
    newest = (_newest_figures(view, attempt) if attempt.is_running else None) or own
    is_working = attempt.is_running and bool(own.computing)
    return AttemptWork(
        computing=own.computing if is_working else None,
        computing_since=_later(attempt.registered_at, own.computing_after) if is_working else None,
        rows_per_second=_first(newest.rows_per_second, own.rows_per_second),
        checkpoint_share=_first(newest.checkpoint_share, own.checkpoint_share),
        transport=attempt.owner.transport if attempt.is_running else None,
        answered_at=last_answer(attempt, view.of_operator(operator_id)) if attempt.is_running else None,
    )


def last_answer(attempt: AttemptRecord, checkpoints: Iterable[CheckpointRecord]) -> datetime:
    """
    Return the newest time at which, as the rows tell, the coordinator has answered a call of a running attempt.

    Its registration, the triggers and acknowledgements of its checkpoints and its reports of work leave a time.

    :param checkpoints: Checkpoints of the operator.
    """
    own = (c for c in checkpoints if c.epoch == attempt.epoch)
    calls = (time for c in own for time in (c.triggered_at, c.completed_at) if time is not None)
    work = attempt.restored_summary or CheckpointSummary()
    reported_at = _later(attempt.registered_at, work.answered_after) or attempt.registered_at
    return max((reported_at, *calls))


def _later(begin: datetime, seconds: float) -> datetime | None:
    try:
        return begin + timedelta(seconds=seconds)
    except OverflowError:
        # The driver may send any number.
        return None


def _newest_figures(view: JobView, attempt: AttemptRecord) -> CheckpointSummary | None:
    of_attempt = [c for c in view.of_operator(attempt.operator_id) if c.epoch == attempt.epoch and c.completed_at]
    return of_attempt[-1].summary if of_attempt else None


def _first(newest: float | None, own: float | None) -> float | None:
    return own if newest is None else newest
