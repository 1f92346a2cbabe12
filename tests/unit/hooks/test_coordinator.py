"""A task without the database leads the aligned checkpoints of its operators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.execution_time.context import set_current_context

from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import ALIGNED_OPERATOR_ID, job_id_of
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, JobStatus
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.exceptions import (
    CheckpointDeclinedError,
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    StaleAttemptError,
)
from airflow_provider_statecheck.flink.components import AcknowledgeMessage, DeclineMessage
from airflow_provider_statecheck.flink.coordinator import CheckpointCoordinator
from airflow_provider_statecheck.hooks import transport
from airflow_provider_statecheck.hooks.statecheck import StatecheckHook
from tests.aligned_job import AlignedTask
from tests.conformance.served import ClaimedTask
from tests.unit.flink.stand_ins import RecordingCoordinator
from tests.unit.worker import ServedJobs

CHECKPOINT = CheckpointProperties.for_checkpoint()


@pytest.fixture
def task(in_worker: ServedJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedJobs]:
    """Run in a task whose Dag may do no maintenance."""

    def credentials(client: Any, address: object) -> ClaimedTask:
        claimed = ClaimedTask(client)
        claimed.owner = replace(claimed.owner, logical_task="sales_dag/lead")
        return claimed

    monkeypatch.setenv("AIRFLOW__STATECHECK__CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    monkeypatch.setattr(transport, "task_credentials", credentials)
    ti = SimpleNamespace(dag_id="sales_dag", task_id="lead", map_index=-1, max_tries=1, try_number=1)
    run = SimpleNamespace(run_id="run", logical_date=None, clear_number=0)
    context: Any = {"ti": ti, "dag_run": run}
    with set_current_context(context):
        yield in_worker


def acknowledging(coordinator: CheckpointCoordinator, tasks: list[AlignedTask]) -> None:
    """Let the tasks acknowledge each checkpoint without state."""
    for each in tasks:

        def acknowledge(checkpoint_id: int, attempt_id: str = each.attempt_id) -> None:
            message = AcknowledgeMessage(job_id=coordinator.job_id, attempt_id=attempt_id, checkpoint_id=checkpoint_id)
            coordinator.receive_acknowledge_message(message)

        each.on_trigger = acknowledge


def test_a_task_completes_checkpoints_and_its_retry_restores_the_latest(task: ServedJobs) -> None:
    tasks = [AlignedTask("orders"), AlignedTask("refunds")]
    with StatecheckHook().coordinator(tasks, job="sales") as coordinator:
        acknowledging(coordinator, tasks)
        completed = [coordinator.trigger_checkpoint(CHECKPOINT).result(30) for _ in range(2)]
        assert coordinator.statistics.create_snapshot().counts.completed == 2
    assert [each.checkpoint_id for each in completed] == [1, 2]
    [leader] = task.store.describe(job_id_of("sales")).attempts
    assert (leader.operator_id, leader.status) == (ALIGNED_OPERATOR_ID, AttemptStatus.FINISHED)
    assert dict(leader.owner.airflow)["task_id"] == "lead"

    with StatecheckHook().coordinator(tasks, job="sales") as coordinator:
        assert coordinator.restore_latest_checkpointed_state(tasks)
        coordinator.shutdown_store(JobStatus.FINISHED)
    assert [each.restored for each in tasks] == [(2, {}, False)] * 2


def test_after_a_loss_of_the_rows_new_checkpoints_leave_those_on_storage_as_they_are(
    task: ServedJobs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = [AlignedTask("orders"), AlignedTask("refunds")]

    def complete(name: str) -> int:
        with StatecheckHook().coordinator(tasks, job=name) as coordinator:
            acknowledging(coordinator, tasks)
            return coordinator.trigger_checkpoint(CHECKPOINT).result(30).checkpoint_id

    assert [complete("sales") for _ in range(3)] == [1, 2, 3]
    kept = {path: path.read_bytes() for path in (tmp_path / "checkpoints").rglob("chk-3/*")}
    task.lose_rows()
    assert "not in the database" not in caplog.text
    assert complete("sales") == 4
    assert "contains checkpoint 3, which is not in the database" in caplog.text
    assert kept
    assert {path: path.read_bytes() for path in kept} == kept
    assert task.store.describe(job_id_of("sales")).checkpoint(4) is not None


def test_each_checkpoint_has_the_state_of_operator_coordinators_and_a_retry_restores_it(task: ServedJobs) -> None:
    tasks = [AlignedTask("orders")]
    first, second = (RecordingCoordinator("orders", lambda result: result.set_result(b"month 3")) for _ in range(2))
    with StatecheckHook().coordinator(tasks, operator_coordinators=[first], job="sales") as coordinator:
        acknowledging(coordinator, tasks)
        coordinator.trigger_checkpoint(CHECKPOINT).result(30)
    with StatecheckHook().coordinator(tasks, operator_coordinators=[second], job="sales") as coordinator:
        assert coordinator.restore_latest_checkpointed_state(tasks)
    assert first.told == [("checkpoint", 1), ("complete", 1)]
    assert second.told == [("reset", 1, b"month 3")]


def test_pending_checkpoints_of_the_job_of_the_run_are_aborted_at_the_end_of_the_block(task: ServedJobs) -> None:
    with StatecheckHook().coordinator([AlignedTask("orders")]) as coordinator:
        pending = coordinator.trigger_checkpoint(CHECKPOINT)
    assert coordinator.job_id == job_id_of("sales_dag/run")
    error = pending.exception(30)
    assert error is not None
    assert error.reason is CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN


def test_the_block_fails_with_an_operator_that_cannot_take_a_completion(task: ServedJobs) -> None:
    tasks = [AlignedTask("orders", fails_at={"complete"})]

    def program() -> None:
        with StatecheckHook().coordinator(tasks, job="sales") as coordinator:
            acknowledging(coordinator, tasks)
            coordinator.trigger_checkpoint(CHECKPOINT).result(30)

    with pytest.raises(RuntimeError, match="orders cannot take complete"):
        program()


def test_the_block_fails_with_more_failed_checkpoints_than_are_tolerated(task: ServedJobs) -> None:
    config, orders = CheckpointConfig(), AlignedTask("orders")
    config.tolerable_failed_checkpoints = 0

    def program() -> None:
        with StatecheckHook().coordinator([orders], config, job="sales") as coordinator:

            def decline(checkpoint_id: int) -> None:
                message = DeclineMessage(
                    job_id=coordinator.job_id, attempt_id=orders.attempt_id, checkpoint_id=checkpoint_id
                )
                coordinator.receive_decline_message(message)

            orders.on_trigger = decline
            coordinator.trigger_checkpoint(CHECKPOINT).exception(30)

    with pytest.raises(CheckpointDeclinedError, match="tolerable_failed_checkpoints is 0"):
        program()


@pytest.mark.parametrize(("error", "raised"), [(ValueError, ValueError), (None, StaleAttemptError)])
def test_a_block_whose_leader_was_replaced_raises_its_own_error(
    task: ServedJobs, error: type[Exception] | None, raised: type[Exception]
) -> None:
    def program() -> None:
        with StatecheckHook().coordinator([AlignedTask("orders")], job="sales"):
            with StatecheckHook().coordinator([AlignedTask("orders")], job="sales"):
                pass
            if error is not None:
                raise error

    with pytest.raises(raised):
        program()


def test_a_process_that_runs_no_task_is_refused(in_worker: ServedJobs, tmp_path: Path) -> None:
    leading = StatecheckHook().coordinator([AlignedTask("orders")], checkpoint_dir=str(tmp_path), job="sales")
    with pytest.raises(EnvironmentNotReadyError, match="found none; call the coordinator from a task, or"):
        leading.__enter__()


def test_a_job_that_a_template_left_out_is_not_led(task: ServedJobs) -> None:
    with pytest.raises(InvalidConfigurationError, match="a value for job, found 'None'"):
        StatecheckHook().coordinator([AlignedTask("orders")], job="None").__enter__()
    assert task.store.jobs() == ()


def test_a_coordinator_without_tasks_is_refused_and_does_not_lead(task: ServedJobs) -> None:
    with pytest.raises(InvalidConfigurationError, match="at least one task"):
        StatecheckHook().coordinator([], job="sales").__enter__()
    [leader] = task.store.describe(job_id_of("sales")).attempts
    assert leader.status is AttemptStatus.FINISHED
