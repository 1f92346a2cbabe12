"""What a task logs of the checkpoints of a driver that it submitted, over a coordinator in memory."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.messages import (
    AttemptRef,
    ConfirmRestore,
    DeclineCheckpoint,
    PendingCheckpoint,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.exceptions import CoordinatorError
from airflow_provider_statecheck.hooks.submitted_stage import SubmittedStage, repeatedly
from tests.messages import ManualClock, make_acknowledgement
from tests.sqlite_rows import new_store
from tests.unit.hooks.test_submitted_stage import Gateway, make_stage

OF = "of job 'sales', operator 'aggregate', attempt"


@pytest.fixture
def gateway() -> Gateway:
    return Gateway(new_store(ManualClock()))


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


def submitted(gateway: Gateway) -> tuple[SubmittedStage, AttemptRef]:
    stage = make_stage(gateway)
    stage.register()
    assert stage._attempt is not None
    return stage, stage._attempt


def trigger(gateway: Gateway, attempt: AttemptRef) -> PendingCheckpoint:
    return gateway.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))


def complete(gateway: Gateway, attempt: AttemptRef) -> None:
    pending = trigger(gateway, attempt)
    counts = {"snapshots": 1, "items": 2}
    gateway.acknowledge(make_acknowledgement(attempt, pending.checkpoint_id, full_size_bytes=9, counts=counts))


def fail(gateway: Gateway, attempt: AttemptRef) -> None:
    reason, pending = CheckpointFailureReason.IO_EXCEPTION, trigger(gateway, attempt)
    gateway.decline(
        DeclineCheckpoint(
            attempt=attempt, checkpoint_id=pending.checkpoint_id, reason=reason, message="The disk is full."
        )
    )


def said(log: Any) -> list[str]:
    return [r.getMessage() for r in log.records if r.getMessage().startswith("Checkpoint")]


def test_each_checkpoint_of_the_driver_has_one_line_when_it_has_ended(gateway: Gateway, log: Any) -> None:
    stage, attempt = submitted(gateway)
    stage.log_checkpoints()
    complete(gateway, attempt)
    fail(gateway, attempt)
    trigger(gateway, attempt)
    for _ in range(2):
        stage.log_checkpoints()
    complete(gateway, attempt)
    stage.log_checkpoints()
    content = "completed in 0.000 s; 1 snapshot, 2 finished items, 9 bytes, 0 bytes new"
    assert said(log) == [
        f"Checkpoint 1 {OF} 1: {content}",
        f"Checkpoint 2 {OF} 1: failed; The disk is full.",
        f"Checkpoint 3 {OF} 1: failed; Checkpoint subsumed",
        f"Checkpoint 4 {OF} 1: {content}",
    ]


def test_what_the_driver_restored_is_told_once_it_says_so(gateway: Gateway, log: Any) -> None:
    _, first = submitted(gateway)
    complete(gateway, first)
    retry, second = submitted(gateway)
    retry.log_checkpoints()
    assert said(log) == []
    gateway.confirm_restore(ConfirmRestore(attempt=second, checkpoint_id=1))
    for _ in range(2):
        retry.log_checkpoints()
    assert said(log) == [f"Checkpoint 1 {OF} 2: restored; 1 snapshot, 2 finished items, 9 bytes"]


def test_a_checkpoint_under_which_the_driver_was_killed_is_no_failed_one(gateway: Gateway, log: Any) -> None:
    stage, attempt = submitted(gateway)
    trigger(gateway, attempt)
    stage.close(AttemptStatus.FAILED, "killed")
    stage.log_checkpoints()
    assert said(log) == []


def test_a_try_that_adopts_the_driver_repeats_no_line_of_the_one_before(gateway: Gateway, log: Any) -> None:
    _, attempt = submitted(gateway)
    complete(gateway, attempt)
    adopting = make_stage(gateway)
    adopting.adopt_running()
    complete(gateway, attempt)
    adopting.log_checkpoints()
    assert [line.partition(" of ")[0] for line in said(log)] == ["Checkpoint 2"]


def test_the_checkpoints_are_read_again_only_after_a_change(
    gateway: Gateway, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, attempt = submitted(gateway)
    stage.log_checkpoints()
    complete(gateway, attempt)
    stage.log_checkpoints()
    with monkeypatch.context() as patching:
        patching.setattr(gateway, "describe", lambda _: pytest.fail("nothing has changed"))
        for _ in range(3):
            stage.log_checkpoints()
    fail(gateway, attempt)
    stage.log_checkpoints()
    assert [line.partition(" of ")[0] for line in said(log)] == ["Checkpoint 1", "Checkpoint 2"]


def test_a_coordinator_that_does_not_answer_is_asked_again(
    gateway: Gateway, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, attempt = submitted(gateway)
    complete(gateway, attempt)

    def refuse(*_: Any) -> None:
        raise CoordinatorError("away")

    with monkeypatch.context() as patching:
        patching.setattr(gateway, "describe", refuse)
        stage.log_checkpoints()
    stage.log_checkpoints()
    assert len(said(log)) == 1


def test_the_rows_are_looked_at_while_the_task_waits_and_once_more_at_its_end() -> None:
    looks: list[str] = []
    seen = threading.Event()

    def look() -> None:
        looks.append(threading.current_thread().name)
        seen.set()

    with repeatedly(look, every_seconds=0.001):
        assert seen.wait(30)
    assert looks[0] == "statecheck-driver-checkpoints"
    assert looks[-1] == threading.main_thread().name
