"""Whatever happens in whatever order: what is counted is what the rows say."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings, strategies as st

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.messages import (
    AttemptRef,
    ConfirmRestore,
    DeclineCheckpoint,
    FinishAttempt,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.checkpoint.statistics_snapshot import snapshot_of
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import StaleAttemptError
from tests.messages import ManualClock, make_acknowledgement, make_registration
from tests.sqlite_rows import new_store

STEPS = ("trigger", "acknowledge", "decline", "expire", "register", "finish", "repeat")


class Stage:
    """A driver that does anything at any time, with the coordinator that it speaks to."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.coordinator = AttemptCoordinator(new_store(self.clock))
        self.attempt: AttemptRef = self.coordinator.register(make_registration()).attempt
        self.triggered = [0]
        self.restores = 0

    def do(self, step: str, which: int) -> None:
        try:
            getattr(self, step)(self.triggered[which % len(self.triggered)])
        except StaleAttemptError:
            assert step != "register"

    def trigger(self, _: int) -> None:
        message = TriggerCheckpoint(attempt=self.attempt, request_key=new_key())
        self.triggered.append(self.coordinator.trigger(message).checkpoint_id)

    def acknowledge(self, checkpoint_id: int) -> None:
        self.coordinator.acknowledge(make_acknowledgement(self.attempt, checkpoint_id))

    def repeat(self, checkpoint_id: int) -> None:
        for _ in range(2):
            self.acknowledge(checkpoint_id)

    def decline(self, checkpoint_id: int) -> None:
        reason = CheckpointFailureReason.CHECKPOINT_DECLINED
        self.coordinator.decline(DeclineCheckpoint(attempt=self.attempt, checkpoint_id=checkpoint_id, reason=reason))

    def expire(self, _: int) -> None:
        self.clock.advance(400)
        self.coordinator.expire(self.attempt.job_id)

    def register(self, _: int) -> None:
        grant = self.coordinator.register(make_registration())
        self.attempt = grant.attempt
        if grant.is_restore:
            self.restores += 1
            message = ConfirmRestore(attempt=self.attempt, checkpoint_id=grant.candidates[0].checkpoint_id)
            for _ in range(2):
                self.coordinator.confirm_restore(message)

    def finish(self, _: int) -> None:
        self.coordinator.finish(FinishAttempt(attempt=self.attempt, status=AttemptStatus.FAILED))


def counted_rows(view: JobView) -> tuple[int, int, int, int]:
    # What was under way when its attempt ended has neither completed nor failed.
    ended = CheckpointFailureReason.ATTEMPT_ENDED.value
    statuses = Counter(c.status.value for c in view.checkpoints if c.failure_reason != ended)
    completed = statuses["completed"] + statuses["subsumed"]
    return statuses.total(), statuses["pending"], completed, statuses["aborted"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 20)), max_size=40))
def test_counts_are_those_of_the_rows(steps: list[tuple[str, int]]) -> None:
    stage = Stage()
    for step, which in steps:
        stage.do(step, which)
    view = stage.coordinator.describe(stage.attempt.job_id)
    [operator] = view.operators
    snapshot = snapshot_of(view, operator)
    counts = snapshot.counts
    assert (counts.total, counts.in_progress, counts.completed, counts.failed) == counted_rows(view)
    assert (counts.restored, snapshot.duration.count) == (stage.restores, counts.completed)
    assert sum(dict(snapshot.failures).values()) == counts.failed
    assert [e.checkpoint_id for e in snapshot.history] == [c.checkpoint_id for c in view.checkpoints][:-11:-1]
