from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.messages import (
    ConfirmRestore,
    DeclineCheckpoint,
    FinishAttempt,
    SkippedCheckpoint,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, JobRecord
from airflow_provider_statecheck.exceptions import StaleAttemptError
from airflow_provider_statecheck.gateway.in_process import AttemptChange, Change, JobRemoval, observed_store
from tests.messages import ManualClock, complete_checkpoint, make_registration, make_source
from tests.sqlite_rows import new_store


class Witness:
    def __init__(self) -> None:
        self.changes: list[Change] = []

    def changed(self, job: JobRecord, change: Change) -> None:
        assert job.name == "sales"
        self.changes.append(change)

    def told(self) -> list[tuple[str, str | None, str]]:
        seen = [_brief(change) for change in self.changes]
        self.changes.clear()
        return seen


def _brief(change: Change) -> tuple[str, str | None, str]:
    if isinstance(change, JobRemoval):
        return "job", None, "removed"
    before = None if change.before is None else change.before.value
    if isinstance(change, AttemptChange):
        return f"attempt {change.attempt.epoch}", before, change.attempt.status.value
    return f"checkpoint {change.checkpoint.checkpoint_id}", before, change.checkpoint.status.value


@pytest.fixture
def witness() -> Witness:
    return Witness()


@pytest.fixture
def coordinator(clock: ManualClock, witness: Witness) -> AttemptCoordinator:
    return AttemptCoordinator(observed_store(new_store(clock), witness))


def test_each_change_of_status_is_told_once_in_its_order(coordinator, witness) -> None:
    attempt = coordinator.register(make_registration(num_retained=1)).attempt
    complete_checkpoint(coordinator, attempt)
    complete_checkpoint(coordinator, attempt)
    coordinator.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FINISHED))
    assert witness.told() == [
        ("attempt 1", None, "running"),
        ("checkpoint 1", None, "pending"),
        ("checkpoint 1", "pending", "completed"),
        ("checkpoint 2", None, "pending"),
        ("checkpoint 2", "pending", "completed"),
        ("checkpoint 1", "completed", "subsumed"),
        ("attempt 1", "running", "finished"),
    ]


def test_a_registration_tells_what_it_fenced(coordinator, witness) -> None:
    first = coordinator.register(make_registration()).attempt
    coordinator.trigger(TriggerCheckpoint(attempt=first, request_key=new_key()))
    witness.told()
    coordinator.register(make_registration())
    assert witness.told() == [
        ("checkpoint 1", "pending", "aborted"),
        ("attempt 1", "running", "fenced"),
        ("attempt 2", None, "running"),
    ]


def test_a_repeated_call_tells_nothing(coordinator, witness) -> None:
    request = make_registration()
    attempt = coordinator.register(request).attempt
    trigger = TriggerCheckpoint(attempt=attempt, request_key=new_key())
    pending = coordinator.trigger(trigger)
    reason = CheckpointFailureReason.CHECKPOINT_DECLINED
    decline = DeclineCheckpoint(attempt=attempt, checkpoint_id=pending.checkpoint_id, reason=reason)
    coordinator.decline(decline)
    witness.told()
    coordinator.register(request)
    coordinator.trigger(trigger)
    coordinator.decline(decline)
    assert witness.told() == []


def test_a_savepoint_that_is_restored_counts_as_no_checkpoint_of_the_job(coordinator, witness) -> None:
    source = make_source("memory://savepoints/savepoint-0f6f7c-000000000001")
    refused = coordinator.register(make_registration(uid="other", restore_from=source))
    coordinator.finish(FinishAttempt(attempt=refused.attempt, status=AttemptStatus.FAILED))
    grant = coordinator.register(make_registration(restore_from=source))
    coordinator.confirm_restore(
        ConfirmRestore(attempt=grant.attempt, checkpoint_id=grant.candidates[0].checkpoint_id, claim=True)
    )
    assert [told for told in witness.told() if told[0].startswith("checkpoint")] == []


def test_a_refused_call_tells_nothing(coordinator, witness) -> None:
    attempt = coordinator.register(make_registration()).attempt
    witness.told()
    with suppress(StaleAttemptError):
        complete_checkpoint(coordinator, replace(attempt, epoch=9))
    assert witness.told() == []


def test_a_new_checkpoint_is_told_with_the_time_of_the_last_completed_one(coordinator, witness, clock) -> None:
    attempt = coordinator.register(make_registration()).attempt
    complete_checkpoint(coordinator, attempt)
    completed_at = clock.now()
    clock.advance(90)
    coordinator.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
    assert [c.last_completed_at for c in witness.changes if _brief(c) == ("checkpoint 2", None, "pending")] == [
        completed_at
    ]


def test_a_checkpoint_that_cannot_be_restored_is_told_and_one_whose_bytes_are_gone_keeps_its_status(
    coordinator, witness
) -> None:
    first = coordinator.register(make_registration(num_retained=2)).attempt
    for _ in range(3):
        complete_checkpoint(coordinator, first)
    retry = coordinator.register(make_registration()).attempt
    witness.told()
    skipped = (SkippedCheckpoint(checkpoint_id=3, reason="checksum differs"),)
    coordinator.confirm_restore(ConfirmRestore(attempt=retry, checkpoint_id=2, skipped=skipped))
    coordinator.confirm_discards(retry, (1,))
    assert witness.told() == [("checkpoint 3", "completed", "completed"), ("checkpoint 1", "subsumed", "subsumed")]


def test_each_observer_is_told_of_the_removal_of_a_job_after_its_commit(clock: ManualClock) -> None:
    witnesses = Witness(), Witness()
    store = observed_store(new_store(clock), *witnesses)
    coordinator = AttemptCoordinator(store)
    attempt = coordinator.register(make_registration()).attempt
    coordinator.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FAILED))
    for witness in witnesses:
        witness.told()
    with store.transaction(attempt.job_id) as tx:
        tx.remove_job()
        assert [witness.told() for witness in witnesses] == [[], []]
    assert [witness.told() for witness in witnesses] == [[("job", None, "removed")]] * 2
