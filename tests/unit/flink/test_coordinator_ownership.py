"""
Whose state is: claims, full checkpoints, self-contained savepoints, and what rows and store say of one checkpoint.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint import transitions
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.fencing import require_running
from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.properties import (
    CheckpointProperties,
    CheckpointType,
    ClaimRecord,
    JobStatus,
    RestoreMode,
)
from airflow_provider_statecheck.checkpoint.records import CheckpointRequest, RequestStatus
from airflow_provider_statecheck.checkpoint.states.handles import (
    DistributionMode,
    FileStateHandle,
    OperatorState,
    OperatorStateMeta,
)
from airflow_provider_statecheck.exceptions import (
    CommitStateUnknownError,
    CoordinatorUnavailableError,
    IncompatibleCheckpointError,
    InvalidConfigurationError,
    SavepointClaimedError,
)
from airflow_provider_statecheck.flink.contents import private_states
from airflow_provider_statecheck.flink.coordinator import CheckpointCoordinator
from airflow_provider_statecheck.flink.plan import ExecutionStatus
from airflow_provider_statecheck.flink.requests import TriggerKind
from tests.aligned_job import CHECKPOINT, SAVEPOINT, AlignedJob, AlignedTask, future_of, reason_of

Reason = CheckpointFailureReason


def savepoint(job: AlignedJob, coordinator: CheckpointCoordinator) -> str:
    return job.take(coordinator, SAVEPOINT).external_pointer


def kind(job: AlignedJob, checkpoint_id: int) -> CheckpointType:
    return job.row(checkpoint_id).properties.snapshot_type


def files(states: Any) -> list[FileStateHandle]:
    return [s for s in private_states(states.values()) if isinstance(s, FileStateHandle)]


# Kinds


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (TriggerKind.CONFIGURED, CheckpointType.CHECKPOINT),
        (TriggerKind.INCREMENTAL, CheckpointType.CHECKPOINT),
        (TriggerKind.FULL, CheckpointType.FULL_CHECKPOINT),
    ],
)
def test_a_checkpoint_is_taken_of_the_kind_that_is_asked_for(
    job: AlignedJob, coordinator: CheckpointCoordinator, asked: TriggerKind, expected: CheckpointType
) -> None:
    assert job.take(coordinator, asked).properties.snapshot_type is expected
    assert job.tasks[0].told[0][2].checkpoint_type is expected


def test_no_kind_is_an_argument_error(coordinator: CheckpointCoordinator) -> None:
    with pytest.raises(InvalidConfigurationError, match="configured, full, incremental"):
        coordinator.trigger_checkpoint(None)  # type: ignore[arg-type]


# Modes of restore


def test_without_a_claim_checkpoints_are_full_until_one_was_completed(job: AlignedJob) -> None:
    coordinator = job.coordinator()
    coordinator.restore_savepoint(savepoint(job, coordinator), job.tasks)
    coordinator.trigger_checkpoint(CHECKPOINT)
    coordinator.receive_decline_message(job.decline(job.tasks[0], 3))
    assert kind(job, 3) is CheckpointType.FULL_CHECKPOINT
    savepoint(job, coordinator)
    job.lead()
    successor = job.coordinator()
    job.take(successor, TriggerKind.INCREMENTAL)
    assert kind(job, 5) is CheckpointType.FULL_CHECKPOINT
    job.take(successor)
    assert kind(job, 6) is CheckpointType.CHECKPOINT


def test_a_claim_forces_no_full_checkpoint_and_is_kept(job: AlignedJob) -> None:
    coordinator = job.coordinator()
    pointer = savepoint(job, coordinator)
    coordinator.restore_savepoint(pointer, job.tasks, restore_mode=RestoreMode.CLAIM)
    claim = job.jobs.claim(pointer)
    assert claim is not None
    assert claim.job_id == job.job_id
    job.take(coordinator)
    assert kind(job, 3) is CheckpointType.CHECKPOINT


@pytest.mark.parametrize("mode", list(RestoreMode))
def test_a_savepoint_that_another_claimed_is_refused(job: AlignedJob, mode: RestoreMode) -> None:
    coordinator = job.coordinator()
    pointer = savepoint(job, coordinator)
    other = job_id_of("other")
    with job.jobs.transaction(other, create_as="other") as tx:
        tx.save_claim(
            ClaimRecord(pointer=pointer, job_id=other, operator_id=job.tasks[0].operator_id, claimed_at=tx.now)
        )
    with pytest.raises(SavepointClaimedError):
        coordinator.restore_savepoint(pointer, job.tasks, restore_mode=mode)
    assert job.tasks[0].restored is None
    assert coordinator.components.completed_store.get_latest_checkpoint_id() == 0


@pytest.mark.parametrize("mode", list(RestoreMode))
def test_the_row_of_a_restored_savepoint_stays_that_of_a_savepoint(job: AlignedJob, mode: RestoreMode) -> None:
    coordinator = job.coordinator()
    pointer = savepoint(job, coordinator)
    for _ in range(2):
        restored = coordinator.restore_savepoint(pointer, job.tasks, restore_mode=mode)
        assert restored.checkpoint_id == 2
    assert (kind(job, 1), job.status(1)) == (CheckpointType.SAVEPOINT, "completed")
    job.take(coordinator)
    ended = "disposed" if mode is RestoreMode.CLAIM else "completed"
    assert (kind(job, 1), job.status(1)) == (CheckpointType.SAVEPOINT, ended)


def test_a_checkpoint_without_a_claim_is_never_deleted(job: AlignedJob) -> None:
    coordinator = job.coordinator()
    pointer = job.take(coordinator).external_pointer
    coordinator.shutdown_store(JobStatus.FAILED)
    job.lead()
    again = job.coordinator()
    restored = again.restore_savepoint(pointer, job.tasks)
    assert (restored.checkpoint_id, restored.properties.unclaimed) == (2, True)
    assert job.take(again).properties.snapshot_type is CheckpointType.FULL_CHECKPOINT
    job.take(again)
    job.lead()
    job.coordinator()
    assert job.storage.exists(f"{pointer}/_metadata")


def test_a_checkpoint_that_is_no_savepoint_cannot_be_claimed(job: AlignedJob) -> None:
    coordinator = job.coordinator()
    pointer = job.take(coordinator).external_pointer
    coordinator.shutdown_store(JobStatus.FAILED)
    job.lead()
    with pytest.raises(InvalidConfigurationError, match="claim_mode='no_claim'"):
        job.coordinator().restore_savepoint(pointer, job.tasks, restore_mode=RestoreMode.CLAIM)
    assert job.jobs.claim(pointer) is None


@pytest.mark.parametrize("mode", list(RestoreMode))
def test_a_savepoint_is_restored_after_the_end_of_its_job(job: AlignedJob, mode: RestoreMode) -> None:
    coordinator = job.coordinator()
    job.take(coordinator)
    pointer = savepoint(job, coordinator)
    coordinator.shutdown_store(JobStatus.FINISHED)
    job.lead()
    again = job.coordinator()
    again.restore_savepoint(pointer, job.tasks, restore_mode=mode)
    job.take(again)
    job.lead()
    assert job.coordinator().restore_latest_checkpointed_state(job.tasks, True)


def test_the_leader_of_a_job_that_ended_may_go_on(job: AlignedJob) -> None:
    coordinator = job.coordinator()
    job.take(coordinator)
    coordinator.shutdown_store(JobStatus.FAILED)
    job.take(job.coordinator())
    assert (job.status(1), job.storage.exists(job.location(1))) == ("completed", True), "it is the user's"
    job.lead()
    assert job.coordinator().restore_latest_checkpointed_state(job.tasks)


def test_a_restored_checkpoint_goes_with_the_end_of_the_job(job: AlignedJob) -> None:
    job.take(job.coordinator())
    job.lead()
    coordinator = job.coordinator()
    assert coordinator.restore_latest_checkpointed_state(job.tasks)
    job.take(coordinator)
    coordinator.shutdown_store(JobStatus.FINISHED)
    assert job.directories() == set()


def test_a_savepoint_of_a_stage_keeps_its_row(job: AlignedJob) -> None:
    coordinator = job.coordinator()
    pointer = savepoint(job, coordinator)
    with job.jobs.transaction(job.job_id) as tx:
        row = tx.checkpoint(1)
        assert row is not None
        stage = replace(row, operator_id=job.tasks[0].operator_id)
        tx.remove_checkpoints((1,))
        tx.add_checkpoint(stage)
    coordinator.restore_savepoint(pointer, job.tasks, restore_mode=RestoreMode.CLAIM)
    assert job.jobs.checkpoint(job.job_id, 1) == stage


def test_a_completed_checkpoint_is_announced_although_older_ones_cannot_be_aborted(
    job: AlignedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = job.coordinator(max_concurrent_checkpoints=2)
    coordinator.trigger_checkpoint(CHECKPOINT)
    coordinator.trigger_checkpoint(CHECKPOINT)
    with monkeypatch.context() as broken:
        broken.setattr(coordinator.steps, "abort", unavailable)
        job.acknowledge_all(coordinator, 2)
    assert (job.status(2), job.tasks[0].heard("complete")) == ("completed", [2])
    job.take(coordinator)
    assert job.status(1) == "aborted"


def test_a_savepoint_whose_state_does_not_fit_is_left_to_its_owner(job: AlignedJob) -> None:
    coordinator = job.coordinator()
    pointer = savepoint(job, coordinator)
    with pytest.raises(IncompatibleCheckpointError):
        coordinator.restore_savepoint(pointer, job.tasks[:1], restore_mode=RestoreMode.CLAIM)
    assert job.jobs.claim(pointer) is None
    assert coordinator.components.completed_store.get_latest_checkpoint_id() == 0
    assert not coordinator.restore_latest_checkpointed_state(job.tasks)


def test_claimed_state_that_is_carried_on_outlives_the_savepoint(job: AlignedJob) -> None:
    coordinator = job.coordinator()
    pointer = savepoint(job, coordinator)
    coordinator.restore_savepoint(pointer, job.tasks, restore_mode=RestoreMode.CLAIM)
    job.tasks[1].status = ExecutionStatus.NOT_STARTED
    completed = None
    for _ in range(2):
        completed = job.take(coordinator)
        job.lead()
        coordinator = job.coordinator()
    assert completed is not None
    carried = files({job.tasks[1].operator_id: completed.operator_states[job.tasks[1].operator_id]})
    assert [stream.uri.startswith(pointer) for stream in carried] == [True]
    assert all(job.storage.allowing(pointer).exists(stream.uri) for stream in carried)
    job.tasks[1].status = ExecutionStatus.RUNNING
    for _ in range(2):
        job.take(coordinator)
    assert not job.storage.allowing(pointer).exists(pointer)


@pytest.mark.parametrize("what", [SAVEPOINT, TriggerKind.FULL], ids=["savepoint", "full"])
def test_savepoints_and_full_checkpoints_hold_copies_of_carried_state(job: AlignedJob, what: Any) -> None:
    coordinator = job.coordinator()
    job.take(coordinator)
    job.tasks[1].status = ExecutionStatus.NOT_STARTED
    completed = job.take(coordinator, what)
    found = files(completed.operator_states)
    assert len(found) == 2
    assert all(stream.uri.startswith(f"{completed.external_pointer}/") for stream in found)
    job.storage.delete_directory(job.location(1))
    for stream in found:
        job.storage.allowing(stream.uri).read_verified(stream.uri, size=stream.size, sha256=stream.sha256)


# Rows and store


def test_an_addition_that_had_its_effect_completes_the_checkpoint(
    job: AlignedJob, coordinator: CheckpointCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    future = coordinator.trigger_checkpoint(CHECKPOINT)
    add = coordinator.components.completed_store.add_checkpoint_and_subsume_oldest

    def unknown(*args: Any) -> None:
        add(*args)
        raise CommitStateUnknownError("injected")

    monkeypatch.setattr(coordinator.components.completed_store, "add_checkpoint_and_subsume_oldest", unknown)
    job.acknowledge_all(coordinator, 1)
    assert future.result(0).checkpoint_id == 1
    assert job.tasks[0].heard("complete") == [1]
    assert job.tasks[0].heard("aborted") == []


def union(job: AlignedJob, task: AlignedTask) -> OperatorState:
    state = job.state(task, 1)
    (handle,) = state.subtask_states[0].managed_operator
    meta = OperatorStateMeta((0,), DistributionMode.UNION)
    one = replace(state.subtask_states[0], managed_operator=(replace(handle, states=(("list", meta),)),))
    return replace(state, subtask_states={0: one})


@pytest.mark.parametrize(("ended", "status"), [(1, "aborted"), (0, "pending")])
def test_union_state_without_that_of_ended_subtasks_is_refused(job: AlignedJob, ended: int, status: str) -> None:
    job.tasks = (AlignedTask("source", parallelism=2), AlignedTask("sink"))
    coordinator = job.coordinator()
    coordinator.trigger_checkpoint(CHECKPOINT)
    state = union(job, job.tasks[0])
    message = job.acknowledgement(job.tasks[0], 1, state=state, finished_subtasks=frozenset({ended}))
    reason = Reason.CHECKPOINT_DECLINED_TASK_CLOSING
    with pytest.raises(CheckpointException, check=lambda error: error.reason is reason) if ended else nullcontext():
        coordinator.receive_acknowledge_message(message)
    assert job.status(1) == status


def test_a_request_ends_with_its_checkpoint_whatever_key_triggered_it(job: AlignedJob) -> None:
    coordinator = job.coordinator()
    assert job.leader is not None
    with job.jobs.transaction(job.job_id) as tx:
        leader = require_running(tx, job.leader)
        properties = CheckpointProperties.for_savepoint()
        request = CheckpointRequest(
            job_id=job.job_id,
            request_key="asked",
            operator_id=job.leader.operator_id,
            properties=properties,
            requested_at=tx.now,
            status=RequestStatus.RUNNING,
            checkpoint_id=9,
        )
        tx.save_request(request)
        pending = transitions.begin(
            tx,
            leader,
            checkpoint_id=9,
            location="memory://savepoint",
            timeout=timedelta(days=1),
            request_key="triggered",
            properties=properties,
        )
        transitions.abort(tx, pending, Reason.IO_EXCEPTION)
    assert reason_of(future_of(coordinator, "asked")) is Reason.IO_EXCEPTION


# Errors of rows


def unavailable(*_: Any, **__: Any) -> Any:
    raise CoordinatorUnavailableError("injected")


@pytest.mark.parametrize(
    "call",
    [
        lambda job, c, f: c.stop_checkpoint_scheduler(),
        lambda job, c, f: f.done(),
        lambda job, c, f: f.result(0),
        lambda job, c, f: f.exception(0),
        lambda job, c, f: f.checkpoint_id,
    ],
)
def test_rows_that_do_not_answer_are_an_io_exception_with_its_cause(
    job: AlignedJob, coordinator: CheckpointCoordinator, monkeypatch: pytest.MonkeyPatch, call: Any
) -> None:
    future = coordinator.trigger_checkpoint(CHECKPOINT)
    with monkeypatch.context() as broken:
        for name in ("transaction", "request", "checkpoint", "describe"):
            broken.setattr(job.jobs, name, unavailable)
        with pytest.raises(CheckpointException) as raised:
            call(job, coordinator, future)
    assert raised.value.reason is Reason.IO_EXCEPTION
    assert isinstance(raised.value.__cause__, CoordinatorUnavailableError)
    job.acknowledge_all(coordinator, 1)
    assert future.result(0).checkpoint_id == 1


@pytest.mark.parametrize("what", ["request", "checkpoint"])
def test_future_whose_rows_were_pruned_says_so(job: AlignedJob, coordinator: CheckpointCoordinator, what: str) -> None:
    coordinator.trigger_checkpoint(CHECKPOINT, request_key="k")
    job.acknowledge_all(coordinator, 1)
    with job.jobs.transaction(job.job_id) as tx:
        if what == "request":
            tx.remove_requests(("k",))
        else:
            tx.remove_checkpoints((1,))
    error = future_of(coordinator, "k").exception(0)
    assert error is not None
    assert error.reason is Reason.UNSPECIFIED
    assert "pruned" in str(error)


def test_futures_do_not_read_the_whole_job(
    job: AlignedJob, coordinator: CheckpointCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    future = coordinator.trigger_checkpoint(CHECKPOINT)
    job.acknowledge_all(coordinator, 1)
    monkeypatch.setattr(job.jobs, "describe", unavailable)
    assert future.done()
    assert future_of(coordinator, future.request_key).result(0).checkpoint_id == 1


# Statistics


def test_statistics_count_completed_aborted_late_and_restored_checkpoints(
    job: AlignedJob, coordinator: CheckpointCoordinator
) -> None:
    job.take(coordinator)
    coordinator.trigger_checkpoint(CHECKPOINT)
    late = job.acknowledgement(job.tasks[1], 2)
    coordinator.receive_decline_message(job.decline(job.tasks[0], 2))
    coordinator.receive_acknowledge_message(late)
    coordinator.trigger_checkpoint(CHECKPOINT, is_periodic=True)
    coordinator.restore_latest_checkpointed_state(job.tasks)
    snapshot = job.statistics().create_snapshot()
    counts = snapshot.counts
    assert (counts.completed, counts.failed, counts.restored, counts.in_progress) == (1, 2, 1, 0)
    failed = next(entry for entry in snapshot.history if entry.checkpoint_id == 2)
    assert failed.failure_reason == Reason.CHECKPOINT_DECLINED.value
    assert failed.late_at is not None
