"""Which checkpoint is waited for, and whether it is there."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.job_view import JobView
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.validation import require

_MOST_UIDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedCheckpoint:
    """
    A completed checkpoint of a job that somebody waits for.

    :raises InvalidConfigurationError: for a name or a bound out of its range.
    """

    job: str
    """The name under which the job is kept."""
    uid: str | None = None
    """The operator; ``None`` for any of the job."""
    at_least: int | None = None
    """The lowest id that will do."""
    max_age: timedelta | None = None
    """How long ago it may have been completed."""

    def __post_init__(self) -> None:
        job_id_of(self.job)
        if self.uid is not None:
            operator_id_of(self.uid)
        require("at_least", self.at_least, lambda n: n is None or n >= 1, "a checkpoint id, 1 or more")
        require("max_age", self.max_age, lambda age: age is None or age > timedelta(0), "longer than nothing")

    @property
    def job_id(self) -> JobId:
        """Return the id of the job."""
        return job_id_of(self.job)

    def find(self, view: JobView) -> dict[str, Any] | None:
        """
        Return the newest checkpoint that will do, as plain values, ``None`` if there is none yet.

        :param view: What is kept of the job.
        """
        # Two operators complete their checkpoints in any order, so the one with the highest id need not be the youngest.
        fitting = [c for c in view.checkpoints if self._is_met_by(c, view.read_at)]
        return _plain(view, fitting[-1]) if fitting else None

    def unknown_operator(self, view: JobView) -> str | None:
        """Return which operators the job has if the awaited one is none of them, ``None`` if it is."""
        uids = sorted(operator.uid for operator in view.operators)
        if self.uid is None or self.uid in uids:
            return None
        shown = ", ".join(map(repr, uids[:_MOST_UIDS])) + (", ..." if len(uids) > _MOST_UIDS else "")
        return f"Job {self.job!r} has no operator {self.uid!r} so far; it has {shown or 'none'}."

    def __str__(self) -> str:
        operator = "any operator" if self.uid is None else f"operator {self.uid!r}"
        at_least = "" if self.at_least is None else f", id {self.at_least} or later"
        max_age = "" if self.max_age is None else f", at most {self.max_age} old"
        return f"a completed checkpoint of {operator} of job {self.job!r}{at_least}{max_age}"

    def _is_met_by(self, checkpoint: CheckpointRecord, now: datetime) -> bool:
        return (
            checkpoint.is_restorable
            and checkpoint.unusable_reason is None
            and (self.uid is None or checkpoint.operator_id == operator_id_of(self.uid))
            and (self.at_least is None or checkpoint.checkpoint_id >= self.at_least)
            and self._is_young_enough(checkpoint, now)
        )

    def _is_young_enough(self, checkpoint: CheckpointRecord, now: datetime) -> bool:
        # Both times are the coordinator's. The job's last transition would not do for "now": a job that has stopped
        # would stay young for ever; nor would this machine's clock, which may differ from the one that dated the row.
        completed_at = checkpoint.completed_at
        return self.max_age is None or (completed_at is not None and now - completed_at <= self.max_age)


def _plain(view: JobView, checkpoint: CheckpointRecord) -> dict[str, Any]:
    uids = {operator.operator_id: operator.uid for operator in view.operators}
    completed_at = checkpoint.completed_at
    return {
        "job": view.job.name,
        "uid": uids[checkpoint.operator_id],
        "checkpoint_id": checkpoint.checkpoint_id,
        "pointer": checkpoint.location,
        "completed_at": None if completed_at is None else completed_at.isoformat(),
    }
