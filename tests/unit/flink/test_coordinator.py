"""Triggering, completion, aborts, savepoints, the scheduler, restores and the end of a coordinator."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.aligned.contents import AlignedContent
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import operator_id_of
from airflow_provider_statecheck.checkpoint.properties import CheckpointType, RestoreMode
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.checkpoint.statistics import OperatorStatistics
from airflow_provider_statecheck.exceptions import (
    CommitStateUnknownError,
    CoordinatorError,
    CoordinatorUnavailableError,
    IncompatibleCheckpointError,
    InvalidConfigurationError,
    StorageError,
)
from airflow_provider_statecheck.flink.completion import size_of
from airflow_provider_statecheck.flink.coordinator import CheckpointCoordinator
from airflow_provider_statecheck.flink.plan import ExecutionStatus
from airflow_provider_statecheck.storage.aligned_files import AlignedFiles
from tests.aligned_job import CHECKPOINT, JOB_NAME, SAVEPOINT, AlignedJob, AlignedTask, NoWaiting, future_of, reason_of
from tests.messages import present
from tests.unit.flink.stand_ins import RecordingCoordinator, RecordingHook, with_data

Reason = CheckpointFailureReason


class FailingFiles(AlignedFiles):
    """Files of which the metadata cannot be written."""

    def write_metadata(self, checkpoint: CheckpointRecord, content: AlignedContent) -> FileStateHandle:
        raise StorageError("injected")


def raising(error: Exception) -> Callable[..., Any]:
    def call(*_: Any) -> None:
        raise error

    return call


def failing_add(coordinator: CheckpointCoordinator, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator.components.completed_store, "add_checkpoint_and_subsume_oldest", raising(error))


# Construction


def test_no_task_to_wait_for_is_an_argument_error(job: AlignedJob) -> None:
    with pytest.raises(InvalidConfigurationError, match="tasks_to_wait_for"):
        job.coordinator(tasks_to_wait_for=())


def test_leader_of_another_job_is_an_argument_error(job: AlignedJob) -> None:
    with pytest.raises(InvalidConfigurationError, match="leader"):
        job.coordinator(job_name="other")


def test_base_directories_that_cannot_be_made_fail_a_periodic_coordinator(job: AlignedJob) -> None:
    class Broken(AlignedFiles):
        def initialize_base_locations_for_checkpoint(self) -> None:
            raise StorageError("injected")

    broken = Broken(job.storage, job.job_id, JOB_NAME)
    with pytest.raises(StorageError):
        job.coordinator(checkpoint_interval=timedelta(minutes=1), checkpoint_storage=broken)
    future = job.coordinator(checkpoint_storage=broken).trigger_checkpoint(CHECKPOINT)
    assert reason_of(future) is Reason.IO_EXCEPTION


# Trigger


def test_ids_begin_at_one_and_grow(job: AlignedJob, coordinator: CheckpointCoordinator) -> None:
    assert [coordinator.trigger_checkpoint(CHECKPOINT).checkpoint_id for _ in range(3)] == [1, 2, 3]


def test_repeated_request_key_is_the_same_request(job: AlignedJob, coordinator: CheckpointCoordinator) -> None:
    one, two = (coordinator.trigger_checkpoint(CHECKPOINT, request_key="k") for _ in range(2))
    assert (one.checkpoint_id, two.checkpoint_id) == (1, 1)
    assert job.tasks[0].heard("trigger") == [1]


def test_more_than_may_be_pending_wait_until_one_ends(job: AlignedJob) -> None:
    coordinator = job.coordinator()
    coordinator.trigger_checkpoint(CHECKPOINT)
    second = coordinator.trigger_checkpoint(CHECKPOINT)
    assert second.checkpoint_id is None
    job.acknowledge_all(coordinator, 1)
    assert second.checkpoint_id == 2


def test_forced_savepoint_is_taken_beside_others(job: AlignedJob) -> None:
    coordinator = job.coordinator()
    coordinator.trigger_checkpoint(CHECKPOINT)
    assert coordinator.trigger_checkpoint(SAVEPOINT).checkpoint_id == 2


def test_task_that_does_not_run_fails_the_request(job: AlignedJob, coordinator: CheckpointCoordinator) -> None:
    job.tasks[0].status = ExecutionStatus.FAILED
    assert reason_of(coordinator.trigger_checkpoint(CHECKPOINT)) is Reason.NOT_ALL_REQUIRED_TASKS_RUNNING
    job.tasks[0].status = ExecutionStatus.RUNNING
    assert coordinator.trigger_checkpoint(CHECKPOINT).checkpoint_id == 1


def test_task_that_cannot_be_told_fails_the_checkpoint(job: AlignedJob, coordinator: CheckpointCoordinator) -> None:
    job.tasks[0].fails_at.add("trigger")
    assert reason_of(coordinator.trigger_checkpoint(CHECKPOINT)) is Reason.TRIGGER_CHECKPOINT_FAILURE
    assert job.status(1) == "aborted"


def test_storage_failure_while_triggering_is_an_io_exception(job: AlignedJob) -> None:
    class Broken(AlignedFiles):
        def initialize_location(self, location: str) -> None:
            raise StorageError("injected")

    coordinator = job.coordinator(checkpoint_storage=Broken(job.storage, job.job_id, JOB_NAME), tolerable=0)
    assert reason_of(coordinator.trigger_checkpoint(CHECKPOINT)) is Reason.IO_EXCEPTION
    assert len(job.failed.causes) == 1


def test_acknowledgements_before_all_tasks_were_told_complete_at_the_end_of_triggering(job: AlignedJob) -> None:
    seen: list[str] = []

    def at_once(checkpoint_id: int) -> None:
        job.acknowledge_all(coordinator, checkpoint_id)
        seen.append(job.status(checkpoint_id))

    job.tasks[0].on_trigger = at_once
    coordinator = job.coordinator()
    assert coordinator.trigger_checkpoint(CHECKPOINT).result(0).checkpoint_id == 1
    assert seen == ["pending"]


def test_full_queue_refuses_the_least_important(job: AlignedJob) -> None:
    coordinator = job.coordinator()
    object.__setattr__(coordinator.components.decider, "max_queued", 1)
    coordinator.trigger_checkpoint(CHECKPOINT)
    queued = coordinator.trigger_checkpoint(CHECKPOINT)
    assert reason_of(coordinator.trigger_checkpoint(CHECKPOINT)) is Reason.TOO_MANY_CHECKPOINT_REQUESTS
    assert not queued.done()


def test_savepoint_without_any_directory_is_an_argument_error(job: AlignedJob) -> None:
    job.savepoint_dir = None
    with pytest.raises(InvalidConfigurationError, match=r"execution\.checkpointing\.savepoint-dir"):
        job.coordinator().trigger_checkpoint(SAVEPOINT)


def test_hooks_are_called_after_coordinators_and_kept(job: AlignedJob) -> None:
    hook, context = with_data("hook", 7), RecordingCoordinator("source")
    coordinator = job.coordinator(operator_coordinators=[context])
    assert coordinator.add_master_hook(hook)
    assert not coordinator.add_master_hook(with_data("hook"))
    completed = job.take(coordinator)
    assert [(state.name, state.data) for state in completed.master_states] == [("hook", b"7")]
    own = completed.operator_states[job.tasks[0].operator_id]
    assert own.coordinator_state is not None
    assert own.subtask_states
    assert context.told == [("checkpoint", 1), ("complete", 1)]


def test_state_of_the_coordinator_of_an_unknown_operator_is_never_dropped(job: AlignedJob) -> None:
    context = RecordingCoordinator("renamed")
    future = job.coordinator(operator_coordinators=[context]).trigger_checkpoint(CHECKPOINT)
    assert reason_of(future) is Reason.TRIGGER_CHECKPOINT_FAILURE
    with pytest.raises(CheckpointException) as caught:
        future.result(0)
    assert operator_id_of("renamed") in str(caught.value.__cause__)
    assert context.told == [("checkpoint", 1), ("give up",), ("aborted", 1)]


@pytest.mark.parametrize("how", ["decline", "expiry", "acknowledgement"])
def test_what_is_raised_in_failing_the_job_reaches_the_caller_when_all_else_is_done(
    job: AlignedJob, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the job does not listen")

    coordinator = job.coordinator(tolerable=0)
    for callback in ("fail_job", "fail_job_due_to_task_failure"):
        monkeypatch.setattr(job.failed, callback, fail)
    coordinator.trigger_checkpoint(CHECKPOINT)
    job.pass_time(0 if how == "decline" else 600)
    task = job.tasks[0]
    calls: dict[str, Callable[[], object]] = {
        "decline": lambda: coordinator.receive_decline_message(job.decline(task, 1)),
        "expiry": coordinator.tick,
        "acknowledgement": lambda: coordinator.receive_acknowledge_message(job.acknowledgement(task, 1)),
    }
    with pytest.raises(RuntimeError, match="does not listen"):
        calls[how]()
    assert job.status(1) == "aborted"
    assert job.tasks[1].heard("aborted") == [1]
    coordinator.tick()


def test_failing_hook_fails_the_checkpoint_and_coordinators_give_up(job: AlignedJob) -> None:
    context = RecordingCoordinator("source")
    coordinator = job.coordinator(operator_coordinators=[context])
    coordinator.add_master_hook(RecordingHook("hook", fails_at="trigger"))
    assert reason_of(coordinator.trigger_checkpoint(CHECKPOINT)) is Reason.TRIGGER_CHECKPOINT_FAILURE
    assert context.told == [("checkpoint", 1), ("give up",), ("aborted", 1)]
    assert job.tasks[0].heard("trigger") == []


def test_finished_operator_counts_as_acknowledged(job: AlignedJob, coordinator: CheckpointCoordinator) -> None:
    job.tasks[1].status = ExecutionStatus.FINISHED
    assert job.take(coordinator).operator_states[job.tasks[1].operator_id].is_fully_finished


def test_operator_that_has_not_begun_keeps_its_state_over_subsumption(job: AlignedJob) -> None:
    coordinator = job.coordinator()
    job.take(coordinator)
    job.tasks[1].status = ExecutionStatus.NOT_STARTED
    for _ in range(2):
        job.take(coordinator)
    assert coordinator.restore_latest_checkpointed_state(job.tasks)
    assert job.tasks[1].restored is not None
    handle = job.tasks[1].restored[1][0].managed_operator[0]
    assert job.storage.read_bytes(handle.stream.uri) == b"sink 1 "  # type: ignore[union-attr]
    job.tasks[1].status = ExecutionStatus.RUNNING
    for _ in range(2):
        job.take(coordinator)
    # The checkpoint that the leader restored is pinned until another one leads.
    assert job.storage.exists(job.location(1))
    job.lead()
    job.coordinator()
    assert not job.storage.exists(job.location(1))


def test_tasks_of_a_savepoint_are_told_where_it_goes(job: AlignedJob, coordinator: CheckpointCoordinator) -> None:
    coordinator.trigger_checkpoint(SAVEPOINT)
    options = job.tasks[0].told[0][2]
    assert options.checkpoint_type is CheckpointType.SAVEPOINT
    assert options.target_location.path == job.location(1)


# Completion


def test_completed_checkpoint_subsumes_earlier_pending_ones_but_no_savepoint(
    job: AlignedJob, coordinator: CheckpointCoordinator
) -> None:
    savepoint, earlier, _ = (
        coordinator.trigger_checkpoint(SAVEPOINT),
        coordinator.trigger_checkpoint(CHECKPOINT),
        coordinator.trigger_checkpoint(CHECKPOINT),
    )
    job.acknowledge_all(coordinator, 3)
    assert reason_of(earlier) is Reason.CHECKPOINT_SUBSUMED
    assert not savepoint.done()


def test_savepoint_neither_subsumes_nor_notifies(job: AlignedJob, coordinator: CheckpointCoordinator) -> None:
    job.take(coordinator)
    pending = coordinator.trigger_checkpoint(CHECKPOINT)
    assert job.take(coordinator, SAVEPOINT).checkpoint_id == 3
    assert not pending.done()
    assert job.tasks[0].heard("complete") == [1]
    assert coordinator.components.completed_store.get_latest_checkpoint_id() == 1


def test_last_subsumed_id_is_told(job: AlignedJob, coordinator: CheckpointCoordinator) -> None:
    for _ in range(2):
        job.take(coordinator)
    completes = [facts[:3] for facts in job.tasks[0].told if facts[0] == "complete"]
    assert completes == [("complete", 1, -1), ("complete", 2, 1)]
    assert (job.status(1), job.status(2)) == ("subsumed", "completed")
    assert not job.storage.exists(job.location(1))


def test_metadata_that_cannot_be_written_aborts(job: AlignedJob) -> None:
    files = FailingFiles(job.storage, job.job_id, JOB_NAME)
    coordinator = job.coordinator(checkpoint_storage=files)
    future = coordinator.trigger_checkpoint(CHECKPOINT)
    with pytest.raises(CheckpointException, match="Finalize"):
        job.acknowledge_all(coordinator, 1)
    assert reason_of(future) is Reason.FINALIZE_CHECKPOINT_FAILURE
    assert not job.storage.exists(job.location(1))
    assert job.tasks[0].heard("aborted") == [1]


def test_store_that_refuses_a_checkpoint_discards_it_and_keeps_the_latest(
    job: AlignedJob, coordinator: CheckpointCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.take(coordinator)
    future = coordinator.trigger_checkpoint(CHECKPOINT)
    failing_add(coordinator, CoordinatorError("injected"), monkeypatch)
    with pytest.raises(CheckpointException):
        job.acknowledge_all(coordinator, 2)
    assert reason_of(future) is Reason.FINALIZE_CHECKPOINT_FAILURE
    assert not job.storage.exists(job.location(2))
    assert job.storage.exists(job.location(1))
    assert job.coordinator().components.completed_store.get_latest_checkpoint_id() == 1


def test_addition_of_unknown_outcome_is_settled_by_the_row(
    job: AlignedJob, coordinator: CheckpointCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    future = coordinator.trigger_checkpoint(CHECKPOINT)
    failing_add(coordinator, CommitStateUnknownError("injected"), monkeypatch)
    with pytest.raises(CheckpointException):
        job.acknowledge_all(coordinator, 1)
    assert reason_of(future) is Reason.FINALIZE_CHECKPOINT_FAILURE
    assert (job.status(1), job.storage.exists(job.location(1))) == ("aborted", False)


def test_addition_of_unknown_outcome_deletes_nothing_while_the_row_cannot_be_read(
    job: AlignedJob, coordinator: CheckpointCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    future = coordinator.trigger_checkpoint(CHECKPOINT)
    failing_add(coordinator, CommitStateUnknownError("injected"), monkeypatch)
    with monkeypatch.context() as broken:
        broken.setattr(job.rows, "abort", raising(CoordinatorUnavailableError("injected")))
        with pytest.raises(CoordinatorUnavailableError):
            job.acknowledge_all(coordinator, 1)
    assert job.storage.exists(f"{job.location(1)}/_metadata")
    job.pass_time(600)
    job.coordinator().tick()
    assert (job.status(1), future.result(0).checkpoint_id) == ("completed", 1)


def test_task_that_fails_at_a_completion_is_failed(job: AlignedJob, coordinator: CheckpointCoordinator) -> None:
    job.tasks[1].fails_at.add("complete")
    job.take(coordinator)
    assert [uid for uid, _ in job.failed_tasks] == ["sink"]


# Abort


def test_expired_checkpoint_is_aborted_by_the_clock(job: AlignedJob, coordinator: CheckpointCoordinator) -> None:
    future = coordinator.trigger_checkpoint(CHECKPOINT)
    job.pass_time(599)
    coordinator.tick()
    assert not future.done()
    job.pass_time(1)
    coordinator.tick()
    assert reason_of(future) is Reason.CHECKPOINT_EXPIRED
    assert job.tasks[0].heard("aborted") == [1]


def test_expired_checkpoint_names_the_operators_that_it_awaited(job: AlignedJob) -> None:
    job.tasks = tuple(AlignedTask(uid) for uid in ("refunds", "orders", "sink"))
    coordinator = job.coordinator(tolerable=0)
    future = coordinator.trigger_checkpoint(CHECKPOINT)
    coordinator.receive_acknowledge_message(job.acknowledgement(job.tasks[2], 1))
    job.pass_time(600)
    assert coordinator.receive_acknowledge_message(job.acknowledgement(job.tasks[0], 1))
    expected = "expired before 'orders', 'refunds' had acknowledged"
    assert reason_of(future) is Reason.CHECKPOINT_EXPIRED
    assert expected in str(future.exception(0))
    assert expected in str(job.failed.causes[0])
    assert expected in job.jobs.describe(job.job_id).checkpoints[0].failure_message


def test_tasks_are_not_triggered_for_a_checkpoint_that_expired_in_its_hooks(job: AlignedJob) -> None:
    class SlowHook(RecordingHook):
        def trigger_checkpoint(self, *arguments: Any) -> Any:
            job.pass_time(600)
            return super().trigger_checkpoint(*arguments)

    coordinator = job.coordinator()
    coordinator.add_master_hook(SlowHook("slow"))
    future = coordinator.trigger_checkpoint(CHECKPOINT)
    assert reason_of(future) is Reason.CHECKPOINT_EXPIRED
    assert [task.heard("trigger") for task in job.tasks] == [[] for _ in job.tasks]


def test_the_sizes_of_all_late_acknowledgements_are_kept(job: AlignedJob) -> None:
    job.tasks = tuple(AlignedTask(uid) for uid in ("orders", "refunds", "sink"))
    coordinator = job.coordinator()
    coordinator.trigger_checkpoint(CHECKPOINT)
    messages = [job.acknowledgement(task, 1) for task in job.tasks]
    coordinator.receive_acknowledge_message(messages[0])
    job.pass_time(600)
    coordinator.tick()
    for message in (*messages[1:], *messages):
        coordinator.receive_acknowledge_message(message)
    view = job.jobs.describe(job.job_id)
    failed = present(OperatorStatistics.in_view(view, view.checkpoints[0].operator_id).latest_failed)
    assert failed.state_size_bytes == sum(map(size_of, messages)) > 0


def test_too_many_failures_fail_the_job(job: AlignedJob) -> None:
    coordinator = job.coordinator(tolerable=1)
    for number in (1, 2):
        coordinator.trigger_checkpoint(CHECKPOINT)
        coordinator.receive_decline_message(job.decline(job.tasks[0], number))
    assert len(job.failed.causes) == 1


# Scheduler


def test_periodic_checkpoints_are_taken_when_they_are_due(job: AlignedJob) -> None:
    coordinator = job.coordinator(checkpoint_interval=timedelta(minutes=1))
    coordinator.tick()
    assert not coordinator.is_periodic_checkpointing_started
    coordinator.start_checkpoint_scheduler()
    job.pass_time(61)
    coordinator.tick()
    assert job.tasks[0].heard("trigger") == [1]
    job.acknowledge_all(coordinator, 1)
    job.pass_time(60)
    coordinator.tick()
    assert job.tasks[0].heard("trigger") == [1, 2]


def test_periodic_checkpoint_keeps_the_pause(job: AlignedJob) -> None:
    coordinator = job.coordinator(
        checkpoint_interval=timedelta(minutes=1), min_pause_between_checkpoints=timedelta(minutes=1)
    )
    coordinator.start_checkpoint_scheduler()
    coordinator.trigger_checkpoint(CHECKPOINT)
    job.pass_time(60)
    job.acknowledge_all(coordinator, 1)
    coordinator.tick()
    assert job.tasks[0].heard("trigger") == [1]
    job.pass_time(60)
    coordinator.tick()
    assert job.tasks[0].heard("trigger") == [1, 2]


def test_scheduler_cannot_start_without_an_interval_or_after_the_shutdown(
    job: AlignedJob, coordinator: CheckpointCoordinator
) -> None:
    with pytest.raises(CoordinatorError, match="interval"):
        coordinator.start_checkpoint_scheduler()
    coordinator.shutdown()
    with pytest.raises(CoordinatorError, match="shut down"):
        coordinator.start_checkpoint_scheduler()


def test_periodic_request_without_scheduler_fails(job: AlignedJob, coordinator: CheckpointCoordinator) -> None:
    future = coordinator.trigger_checkpoint(CHECKPOINT, is_periodic=True)
    assert reason_of(future) is Reason.PERIODIC_SCHEDULER_SHUTDOWN


def test_stopping_the_scheduler_aborts_all_and_it_may_start_again(job: AlignedJob) -> None:
    coordinator = job.coordinator(checkpoint_interval=timedelta(minutes=1))
    for _ in range(2):
        coordinator.start_checkpoint_scheduler()
        assert coordinator.is_periodic_checkpointing_started
        pending, queued = (coordinator.trigger_checkpoint(CHECKPOINT) for _ in range(2))
        coordinator.stop_checkpoint_scheduler()
        assert {reason_of(pending), reason_of(queued)} == {Reason.CHECKPOINT_COORDINATOR_SUSPEND}
        assert not coordinator.is_periodic_checkpointing_started


# Shutdown


def test_shutdown_ends_everything_once(job: AlignedJob) -> None:
    coordinator = job.coordinator()
    hook = with_data("hook", 7)
    coordinator.add_master_hook(hook)
    pending, queued = (coordinator.trigger_checkpoint(CHECKPOINT) for _ in range(2))
    ended: list[Any] = []
    for future in (pending, queued):
        future.add_done_callback(ended.append)
    coordinator.shutdown()
    coordinator.shutdown()
    assert {reason_of(pending), reason_of(queued)} == {Reason.CHECKPOINT_COORDINATOR_SHUTDOWN}
    assert sorted(ended, key=id) == sorted([pending, queued], key=id)
    assert hook.told.count(("close",)) == 1
    assert reason_of(coordinator.trigger_checkpoint(CHECKPOINT)) is Reason.CHECKPOINT_COORDINATOR_SHUTDOWN
    with pytest.raises(CoordinatorError, match="shut down"):
        coordinator.restore_latest_checkpointed_state(job.tasks)


# Restore


def test_restore_without_checkpoint(job: AlignedJob, coordinator: CheckpointCoordinator) -> None:
    hook = with_data("hook", 7)
    coordinator.add_master_hook(hook)
    with pytest.raises(CoordinatorError, match="completed checkpoint"):
        coordinator.restore_latest_checkpointed_state(job.tasks, True)
    assert coordinator.restore_latest_checkpointed_state(job.tasks) is False
    assert hook.told == [("reset",)]


def test_restore_gives_state_to_tasks_hooks_and_coordinators(job: AlignedJob) -> None:
    context = RecordingCoordinator("source")
    coordinator = job.coordinator(operator_coordinators=[context])
    hook = with_data("hook", 7)
    coordinator.add_master_hook(hook)
    job.take(coordinator)
    assert coordinator.restore_latest_checkpointed_state(job.tasks, True)
    assert ("restore", 1, 7) in hook.told
    assert ("reset", 1, b"x") in context.told
    assert all(task.restored is not None and task.restored[0] == 1 for task in job.tasks)


def test_state_without_operator_is_an_error_before_any_task_got_state(
    job: AlignedJob, coordinator: CheckpointCoordinator
) -> None:
    job.take(coordinator)
    left = (job.tasks[0],)
    with pytest.raises(IncompatibleCheckpointError, match="sink"):
        coordinator.restore_latest_checkpointed_state(left)
    assert left[0].restored is None
    assert coordinator.restore_latest_checkpointed_state(left, allow_non_restored_state=True)
    assert left[0].restored is not None


def test_part_of_the_subtasks_is_refused_where_all_or_nothing_is_asked(job: AlignedJob) -> None:
    job.tasks = (AlignedTask("source", parallelism=2), AlignedTask("sink"))
    coordinator = job.coordinator()
    job.take(coordinator)
    with pytest.raises(IncompatibleCheckpointError, match="subset"):
        coordinator.restore_latest_checkpointed_state(job.tasks, all_or_nothing_state=True)
    assert coordinator.restore_latest_checkpointed_state(job.tasks)


@pytest.mark.parametrize("mode", list(RestoreMode))
def test_savepoint_is_restored_and_ids_go_on_after_it(
    job: AlignedJob, coordinator: CheckpointCoordinator, mode: RestoreMode
) -> None:
    pointer = job.take(coordinator, SAVEPOINT).external_pointer
    restored = coordinator.restore_savepoint(pointer, job.tasks, restore_mode=mode)
    assert restored.properties.unclaimed is (mode is RestoreMode.NO_CLAIM)
    assert job.tasks[0].restored is not None
    assert restored.checkpoint_id == 2
    for _ in range(3):
        job.take(coordinator)
    assert job.storage.allowing(pointer).exists(pointer)
    job.lead()
    job.coordinator()
    assert job.storage.allowing(pointer).exists(pointer) is (mode is RestoreMode.NO_CLAIM)


def test_savepoint_is_not_restored_below_newer_checkpoints(job: AlignedJob, coordinator: CheckpointCoordinator) -> None:
    savepoint = job.take(coordinator, SAVEPOINT)
    job.take(coordinator)
    with pytest.raises(CoordinatorError, match="newer"):
        coordinator.restore_savepoint(savepoint.external_pointer, job.tasks)


# Futures


def test_future_waits_until_the_rows_say_that_it_ended(job: AlignedJob) -> None:
    coordinator = job.coordinator(pause=NoWaiting(lambda: job.acknowledge_all(coordinator, 1)))
    future = coordinator.trigger_checkpoint(CHECKPOINT)
    assert future.result().checkpoint_id == 1
    assert future.exception() is None


def test_future_gives_up_after_its_timeout(job: AlignedJob) -> None:
    future = job.coordinator(pause=lambda _: None).trigger_checkpoint(CHECKPOINT)
    with pytest.raises(TimeoutError):
        future.result(0.01)


def test_future_of_a_request_nobody_made_fails(job: AlignedJob, coordinator: CheckpointCoordinator) -> None:
    assert reason_of(future_of(coordinator, "nobody")) is Reason.UNSPECIFIED


def test_callbacks_are_called_once_and_may_fail(job: AlignedJob, coordinator: CheckpointCoordinator) -> None:
    calls: list[str] = []
    future = coordinator.trigger_checkpoint(CHECKPOINT)
    future.add_done_callback(lambda _: 1 / 0)
    future.add_done_callback(lambda _: calls.append("before"))
    job.acknowledge_all(coordinator, 1)
    future.add_done_callback(lambda _: calls.append("after"))
    coordinator.tick()
    assert calls == ["before", "after"]
