"""
The part of a coordinator's contract that is about history: how it is listed, and that it does not grow for ever.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import (
    AttemptRef,
    ConfirmDiscards,
    FinishAttempt,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointStatus
from airflow_provider_statecheck.checkpoint.retention import DEFAULT_AGE
from airflow_provider_statecheck.checkpoint.store import CheckpointPage
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError
from airflow_provider_statecheck.gateway.verbs import CheckpointCoordinatorGateway as Gateway
from tests.messages import ManualClock, complete_checkpoint, make_registration

JOB = job_id_of("sales")


class HistoryContract:
    """What holds for the history of a job, whatever keeps its rows."""

    gateway: Gateway

    def listed(self, page: CheckpointPage) -> list[int]:
        """Return the ids of a page."""
        return [c.checkpoint_id for c in self.gateway.checkpoints(JOB, page)]

    def leave_history(self, checkpoints: int, status: AttemptStatus | None = AttemptStatus.FAILED) -> AttemptRef:
        """Let an attempt retain one checkpoint of several, delete the others, and end."""
        attempt = self.gateway.register(make_registration(num_retained=1)).attempt
        for _ in range(checkpoints):
            gone = tuple(c.checkpoint_id for c in complete_checkpoint(self.gateway, attempt).effects.discards)
            self.gateway.confirm_discards(ConfirmDiscards(job_id=JOB, checkpoint_ids=gone, attempt=attempt))
        if status is not None:
            self.gateway.finish(FinishAttempt(attempt=attempt, status=status))
        return attempt

    # --- pages

    def test_pages_lead_from_the_newest_checkpoint_to_the_oldest(self) -> None:
        self.leave_history(5)
        assert self.listed(CheckpointPage(limit=2)) == [5, 4]
        assert self.listed(CheckpointPage(limit=2, before=4)) == [3, 2]
        assert self.listed(CheckpointPage(limit=2, before=2)) == [1]
        assert self.listed(CheckpointPage(before=1)) == []

    def test_a_page_shows_one_operator_or_one_status(self) -> None:
        self.leave_history(2)
        other = self.gateway.register(make_registration(uid="other")).attempt
        self.gateway.trigger(TriggerCheckpoint(attempt=other, request_key=new_key()))
        assert self.listed(CheckpointPage(operator_id=operator_id_of("other"))) == [3]
        assert self.listed(CheckpointPage(status=CheckpointStatus.SUBSUMED)) == [1]
        both = CheckpointPage(status=CheckpointStatus.SUBSUMED, operator_id=operator_id_of("other"))
        assert self.listed(both) == []

    def test_one_checkpoint_is_read_by_its_id(self) -> None:
        self.leave_history(2)
        found = self.gateway.checkpoint(JOB, 1)
        assert found is not None
        assert (found.checkpoint_id, found.status) == (1, CheckpointStatus.SUBSUMED)
        assert self.gateway.checkpoint(JOB, 3) is None

    def test_there_is_no_latest_checkpoint_of_a_job_that_is_unknown(self) -> None:
        with pytest.raises(CheckpointNotFoundError):
            self.gateway.latest(JOB, operator_id_of("aggregate"))
        self.leave_history(0)
        assert self.gateway.latest(JOB, operator_id_of("aggregate")) is None
        assert self.gateway.latest(JOB, operator_id_of("other")) is None

    # --- an attempt that finishes forgets what is old

    def test_an_attempt_that_finishes_forgets_the_old_rows_of_its_operator(self, clock: ManualClock) -> None:
        self.leave_history(3)
        clock.advance((DEFAULT_AGE + timedelta(hours=1)).total_seconds())
        last = self.leave_history(1, status=None)
        assert self.listed(CheckpointPage()) == [4, 3, 2, 1], "nothing goes before the end"
        self.gateway.finish(FinishAttempt(attempt=last, status=AttemptStatus.FAILED))
        assert self.listed(CheckpointPage()) == [4, 3], "the third was discarded only now"
        assert [a.epoch for a in self.gateway.describe(JOB).attempts] == [2]

    def test_what_is_younger_stays_when_an_attempt_finishes(self, clock: ManualClock) -> None:
        self.leave_history(3)
        clock.advance((DEFAULT_AGE - timedelta(hours=1)).total_seconds())
        self.leave_history(1)
        assert self.listed(CheckpointPage()) == [4, 3, 2, 1]
        assert [a.epoch for a in self.gateway.describe(JOB).attempts] == [1, 2]

    def test_an_attempt_that_finishes_leaves_the_rows_of_other_operators(self, clock: ManualClock) -> None:
        self.leave_history(3)
        clock.advance((DEFAULT_AGE + timedelta(hours=1)).total_seconds())
        other = self.gateway.register(make_registration(uid="other")).attempt
        self.gateway.finish(FinishAttempt(attempt=other, status=AttemptStatus.FINISHED))
        assert self.listed(CheckpointPage()) == [3, 2, 1]

    def test_an_attempt_stays_known_that_wrote_below_another_directory(self, clock: ManualClock) -> None:
        moved = self.gateway.register(make_registration(storage_base="memory://moved")).attempt
        self.gateway.finish(FinishAttempt(attempt=moved, status=AttemptStatus.FAILED))
        clock.advance((DEFAULT_AGE + timedelta(hours=1)).total_seconds())
        self.leave_history(1)
        # Only its row tells garbage collection to look there.
        assert [a.epoch for a in self.gateway.describe(JOB).attempts] == [1, 2]
