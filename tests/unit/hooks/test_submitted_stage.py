"""What a task does for a driver in another process, over a coordinator in memory."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.api.services import Services
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import (
    AttemptRef,
    ConfirmRestore,
    DeclineCheckpoint,
    PendingCheckpoint,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.records import AttemptRecord, AttemptStatus, OnClear
from airflow_provider_statecheck.exceptions import AccessDeniedError, CoordinatorError, StageExitError
from airflow_provider_statecheck.gateway.http import HttpClient, HttpGateway
from airflow_provider_statecheck.hooks.submitted_stage import (
    COMPLETION_SECONDS,
    DriverAccess,
    OwnTokens,
    SubmittedStage,
    repeatedly,
    serving,
    within,
)
from airflow_provider_statecheck.spark.driver.settings import DriverSettings
from tests.messages import ManualClock, complete_checkpoint, make_acknowledgement, make_owner, make_registration
from tests.sqlite_rows import new_engine, new_store
from tests.unit.api.server import CALLER, Tasks

DRIVER = DriverSettings(tolerable_failed_checkpoints=5)


class Gateway(AttemptCoordinator):
    """A coordinator that gives tokens."""

    def token_of(self, attempt: AttemptRef) -> str:
        return f"token of attempt {attempt.epoch}"


@pytest.fixture
def gateway() -> Gateway:
    return Gateway(new_store(ManualClock()))


def make_stage(gateway: Any, **changes: Any) -> SubmittedStage:
    return SubmittedStage(DriverAccess("http://api", gateway), make_registration(**changes), DRIVER)


def attempts(gateway: Gateway) -> tuple[AttemptRecord, ...]:
    return gateway.describe(job_id_of("sales")).attempts


def complete_epoch(gateway: Gateway, epoch: int) -> None:
    complete_checkpoint(gateway, ref_of(epoch))


def ref_of(epoch: int) -> AttemptRef:
    return AttemptRef(job_id=job_id_of("sales"), operator_id=operator_id_of("aggregate"), epoch=epoch)


def test_handover_has_the_token_of_the_attempt_and_the_registration_to_repeat(gateway) -> None:
    stage = make_stage(gateway)
    handover = stage.register()
    assert (handover.url, handover.token) == ("http://api", "token of attempt 1")
    assert (handover.registration, handover.driver) == (stage.registration, DRIVER)
    assert gateway.register(handover.registration).attempt.epoch == 1


def test_attempt_that_the_driver_left_open_is_closed_with_the_reason(gateway) -> None:
    stage = make_stage(gateway)
    stage.register()
    stage.close(AttemptStatus.FAILED, "driver was killed")
    assert [(a.status, a.message) for a in attempts(gateway)] == [(AttemptStatus.FAILED, "driver was killed")]


@pytest.mark.parametrize(
    ("of_driver", "of_task", "message"),
    [
        (AttemptStatus.FAILED, AttemptStatus.FAILED, "its own reason"),
        (AttemptStatus.FINISHED, AttemptStatus.FINISHED, "its own reason"),
        # The application caught the error, or called sys.exit(0).
        (AttemptStatus.FAILED, AttemptStatus.FINISHED, "its own reason"),
        # The application failed after its context was closed.
        (AttemptStatus.FINISHED, AttemptStatus.FAILED, "exit status 1"),
    ],
)
def test_attempt_has_the_status_of_its_task_and_the_reason_of_its_driver(gateway, of_driver, of_task, message) -> None:
    driver, task = make_stage(gateway), make_stage(gateway)
    task.register()
    driver.adopt_running()
    driver.close(of_driver, "its own reason")
    task.close(of_task, "exit status 1" if of_task is AttemptStatus.FAILED else "")
    assert [(a.status, a.message) for a in attempts(gateway)] == [(of_task, message)]


@pytest.mark.parametrize("status", [None, AttemptStatus.FAILED])
def test_driver_that_succeeds_without_the_end_of_its_stage_is_told(gateway, status) -> None:
    """It called os._exit(0)."""
    stage = make_stage(gateway)
    stage.register()
    if status is not None:
        stage.close(status)
    with pytest.raises(StageExitError, match=r"its process succeeded and its attempt is (running|failed)"):
        stage.require_end()
    stage.close(AttemptStatus.FINISHED)
    stage.require_end()


def test_retry_adopts_the_attempt_that_still_runs_and_closes_it(gateway) -> None:
    make_stage(gateway).register()
    retry = make_stage(gateway, owner=make_owner(label="try 2"))
    retry.adopt_running()
    assert [a.owner.label for a in attempts(gateway)] == ["try 2"]
    retry.close(AttemptStatus.FINISHED)
    assert [a.status for a in attempts(gateway)] == [AttemptStatus.FINISHED]


def test_try_that_submitted_a_driver_adopts_nothing(gateway) -> None:
    stage = make_stage(gateway)
    stage.register()
    stage.adopt_running()
    assert [a.epoch for a in attempts(gateway)] == [1]


def test_driver_of_a_task_that_took_over_an_operator_of_a_former_uid_is_adopted_and_told_of(gateway) -> None:
    make_stage(gateway).register()
    complete_epoch(gateway, 1)
    renamed = {"uid": "sums", "former_uids": ("aggregate",)}
    make_stage(gateway, **renamed).register()
    retry = make_stage(gateway, **renamed, owner=make_owner(label="try 2"))
    retry.adopt_running()
    assert [a.owner.label for a in attempts(gateway)] == ["dag.task", "try 2"]
    assert "retains checkpoint 1" in retry.kept()


@pytest.mark.parametrize("status", [AttemptStatus.FINISHED, AttemptStatus.FAILED])
def test_attempt_that_has_ended_is_not_adopted(gateway, status) -> None:
    first = make_stage(gateway)
    first.register()
    first.close(status)
    retry = make_stage(gateway)
    retry.adopt_running()
    retry.close(AttemptStatus.FAILED, "too late")
    assert [(a.status, a.message) for a in attempts(gateway)] == [(status, "")]


def test_attempt_of_another_task_is_not_adopted(gateway) -> None:
    make_stage(gateway).register()
    other = make_stage(gateway, owner=make_owner(logical_task="dag/other"))
    other.adopt_running()
    other.close(AttemptStatus.FAILED)
    assert [a.status for a in attempts(gateway)] == [AttemptStatus.RUNNING]


def test_nothing_is_adopted_or_closed_where_there_is_no_job(gateway) -> None:
    stage = make_stage(gateway)
    stage.adopt_running()
    stage.close(AttemptStatus.FAILED)
    assert "retains no checkpoint" in stage.kept()


def test_nothing_is_adopted_of_a_job_that_only_its_own_dags_read(gateway, monkeypatch) -> None:
    stage, refused = make_stage(gateway), AccessDeniedError("Expected a job on which the Dag works, found another.")
    with monkeypatch.context() as patch:
        patch.setattr(Gateway, "describe", lambda *_: (_ for _ in ()).throw(refused))
        stage.adopt_running()
    stage.register()
    assert [a.status for a in attempts(gateway)] == [AttemptStatus.RUNNING]


@pytest.mark.parametrize(("marker", "was_cleared"), [("3/0", False), ("7/0", True)], ids=["retry", "clear"])
def test_a_clear_is_told_from_a_retry(gateway, marker: str, was_cleared: bool) -> None:
    make_stage(gateway).register()
    assert make_stage(gateway, owner=make_owner(clear_marker=marker)).was_cleared() is was_cleared


def test_the_driver_of_an_attempt_that_was_removed_with_its_job_is_submitted_again() -> None:
    store = new_store(ManualClock())
    gateway = Gateway(store)
    first = make_stage(gateway)
    first.register()
    first.close(AttemptStatus.FINISHED)
    assert not make_stage(gateway).was_cleared()
    with store.transaction(job_id_of("sales")) as tx:
        tx.remove_job()
    assert make_stage(gateway).was_cleared()


def test_last_line_names_the_checkpoint_that_a_retry_restores(gateway) -> None:
    stage = make_stage(gateway)
    stage.register()
    complete_epoch(gateway, 1)
    assert "retains checkpoint 1" in stage.kept()


def test_last_line_does_not_promise_what_an_earlier_generation_left(gateway) -> None:
    first = make_stage(gateway)
    first.register()
    complete_epoch(gateway, 1)
    first.close(AttemptStatus.FINISHED)
    cleared = make_stage(gateway, owner=make_owner(clear_marker="7/0"))
    cleared.register()
    assert "retains no checkpoint" in cleared.kept()


def test_last_line_before_the_driver_has_restored_names_what_it_was_to_restore(gateway) -> None:
    make_stage(gateway).register()
    complete_epoch(gateway, 1)
    next_run = make_owner(run_key="2026-01-02", run_id="scheduled__2026-01-02")
    make_stage(gateway, owner=next_run).register()
    complete_epoch(gateway, 2)
    restarted = make_stage(gateway, owner=replace(next_run, clear_marker="7/0"), on_clear=OnClear.RESTART)
    restarted.register()
    assert "retains checkpoint 1" in restarted.kept()


def test_last_line_of_a_replaced_try_promises_no_retry(gateway) -> None:
    replaced = make_stage(gateway)
    replaced.register()
    complete_epoch(gateway, 1)
    make_stage(gateway).register()
    replaced.close(AttemptStatus.FAILED)
    assert replaced.kept() == (
        "Attempt 2 of job 'sales' has replaced attempt 1, whose new checkpoints are rejected (fenced)."
    )


def test_coordinator_that_does_not_answer_hides_no_failure_of_the_driver(gateway, monkeypatch) -> None:
    stage = make_stage(gateway)
    stage.register()

    def refuse(*_: Any) -> None:
        raise CoordinatorError("away")

    monkeypatch.setattr(gateway, "finish", refuse)
    monkeypatch.setattr(gateway, "describe", refuse)
    stage.close(AttemptStatus.FAILED, "driver was killed")
    assert stage.kept() == "Could not read the retained checkpoints of job 'sales': away"


OF = "of job 'sales', operator 'aggregate', attempt"


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


def submitted(gateway: Gateway) -> tuple[SubmittedStage, AttemptRef]:
    stage = make_stage(gateway)
    stage.register()
    return stage, ref_of(attempts(gateway)[-1].epoch)


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


def test_a_submitted_driver_of_a_test_run_registers_its_test_job(tmp_path: Path) -> None:
    engine = new_engine(tmp_path / "state.db")
    services = Services(lambda: engine, Tasks())
    owner = make_owner(logical_task="nightly/features", run_id=CALLER.run_id)
    with serving(services) as url:
        gateway = HttpGateway(HttpClient(url), OwnTokens(services, CALLER))
        grant = gateway.register(make_registration(job_name="test/nightly/2026-01-01", owner=owner))
        assert complete_checkpoint(gateway, grant.attempt).is_completed
    engine.dispose()


def with_a_checkpoint_on_its_way(gateway: Gateway) -> tuple[SubmittedStage, PendingCheckpoint]:
    stage = make_stage(gateway)
    stage.register()
    return stage, gateway.trigger(TriggerCheckpoint(attempt=ref_of(1), request_key=new_key()))


def test_a_checkpoint_on_its_way_is_waited_for(gateway) -> None:
    stage, pending = with_a_checkpoint_on_its_way(gateway)
    slept: list[float] = []

    def complete_at_the_second_look(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            gateway.acknowledge(make_acknowledgement(ref_of(1), pending))

    stage.let_complete(complete_at_the_second_look)
    assert len(slept) == 2


def test_a_checkpoint_that_does_not_complete_is_not_waited_for_any_longer(gateway) -> None:
    stage, _ = with_a_checkpoint_on_its_way(gateway)
    slept: list[float] = []
    stage.let_complete(slept.append)
    assert sum(slept) == COMPLETION_SECONDS


@pytest.mark.parametrize("trouble", ["no attempt", "no checkpoint", "no coordinator"])
def test_nothing_is_waited_for_without_a_checkpoint_on_its_way(gateway, monkeypatch, trouble: str) -> None:
    stage = make_stage(gateway)
    if trouble != "no attempt":
        stage.register()
    if trouble == "no coordinator":
        gateway.trigger(TriggerCheckpoint(attempt=ref_of(1), request_key=new_key()))
        monkeypatch.setattr(gateway, "describe", unavailable)
    stage.let_complete(lambda _: pytest.fail("it waits"))


def unavailable(*_: Any) -> None:
    raise CoordinatorError("No answer.")


def test_what_does_not_end_in_time_is_left() -> None:
    released, ended = threading.Event(), threading.Event()

    def wait() -> None:
        released.wait()
        ended.set()

    within(0.01, wait)
    assert not ended.is_set()
    released.set()
    assert ended.wait(60)
