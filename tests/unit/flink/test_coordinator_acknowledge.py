"""What becomes of acknowledgements and declines, row by row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_statecheck.checkpoint.aligned.rows import AbortCheckpoints
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.states.handles import (
    FileStateHandle,
    KeyedStateHandle,
    KeyGroupRange,
    OperatorState,
    OperatorSubtaskState,
)
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.flink.components import AcknowledgeMessage
from airflow_provider_statecheck.flink.contents import private_states
from airflow_provider_statecheck.flink.coordinator import CheckpointCoordinator
from tests.aligned_job import CHECKPOINT, AlignedJob, reason_of


def is_there(job: AlignedJob, message: AcknowledgeMessage) -> bool:
    """Return whether the files of an acknowledged state exist."""
    assert message.state is not None
    streams = [stream for stream in private_states([message.state]) if isinstance(stream, FileStateHandle)]
    return all(job.storage.exists(stream.uri) for stream in streams)


def incremental(job: AlignedJob, checkpoint_id: int, shared: FileStateHandle) -> OperatorState:
    handle = KeyedStateHandle(
        backend_id="b", key_group_range=KeyGroupRange(0, 3), checkpoint_id=checkpoint_id, shared=(("f", shared),)
    )
    subtask = OperatorSubtaskState(managed_keyed=(handle,))
    return replace(job.state(job.tasks[0], checkpoint_id), subtask_states={0: subtask})


def test_nothing_is_acknowledged_after_the_shutdown(job: AlignedJob, coordinator: CheckpointCoordinator) -> None:
    coordinator.trigger_checkpoint(CHECKPOINT)
    message = job.acknowledgement(job.tasks[0], 1)
    coordinator.shutdown()
    assert coordinator.receive_acknowledge_message(message) is False
    assert coordinator.receive_acknowledge_message(None) is False


def test_state_of_another_job_is_not_touched(job: AlignedJob, coordinator: CheckpointCoordinator) -> None:
    coordinator.trigger_checkpoint(CHECKPOINT)
    message = job.acknowledgement(job.tasks[0], 1, job_id=job_id_of("other"))
    assert coordinator.receive_acknowledge_message(message) is False
    assert is_there(job, message)


def test_first_acknowledgement_is_stored(job: AlignedJob, coordinator: CheckpointCoordinator) -> None:
    future = coordinator.trigger_checkpoint(CHECKPOINT)
    assert coordinator.receive_acknowledge_message(job.acknowledgement(job.tasks[0], 1)) is True
    assert not future.done()
    assert job.status(1) == "pending"


def test_last_acknowledgement_completes(job: AlignedJob, coordinator: CheckpointCoordinator) -> None:
    assert job.take(coordinator).operator_states.keys() == {task.operator_id for task in job.tasks}
    assert [task.heard("complete") for task in job.tasks] == [[1], [1]]


def test_duplicate_is_ignored_and_not_discarded(job: AlignedJob, coordinator: CheckpointCoordinator) -> None:
    coordinator.trigger_checkpoint(CHECKPOINT)
    message = job.acknowledgement(job.tasks[0], 1)
    assert coordinator.receive_acknowledge_message(message)
    assert coordinator.receive_acknowledge_message(message) is True
    assert is_there(job, message)
    assert job.status(1) == "pending"


def test_duplicate_with_other_files_loses_only_those(job: AlignedJob, coordinator: CheckpointCoordinator) -> None:
    coordinator.trigger_checkpoint(CHECKPOINT)
    first = job.acknowledgement(job.tasks[0], 1)
    other = job.acknowledgement(job.tasks[0], 1, state=job.state(job.tasks[0], 1, "again"))
    coordinator.receive_acknowledge_message(first)
    coordinator.receive_acknowledge_message(other)
    assert is_there(job, first)
    assert not is_there(job, other)


def test_acknowledgement_of_a_completed_checkpoint_that_is_sent_again_deletes_nothing(
    job: AlignedJob, coordinator: CheckpointCoordinator
) -> None:
    coordinator.trigger_checkpoint(CHECKPOINT)
    messages = [job.acknowledgement(task, 1) for task in job.tasks]
    for message in messages * 2:
        assert coordinator.receive_acknowledge_message(message) is True
    assert all(is_there(job, message) for message in messages)
    assert job.status(1) == "completed"


def test_state_of_an_unknown_attempt_is_discarded(job: AlignedJob, coordinator: CheckpointCoordinator) -> None:
    coordinator.trigger_checkpoint(CHECKPOINT)
    message = job.acknowledgement(job.tasks[0], 1, attempt_id="zombie")
    assert coordinator.receive_acknowledge_message(message) is True
    assert not is_there(job, message)
    assert job.status(1) == "pending"


def test_state_of_an_unknown_attempt_that_the_checkpoint_names_is_kept(
    job: AlignedJob, coordinator: CheckpointCoordinator
) -> None:
    coordinator.trigger_checkpoint(CHECKPOINT)
    message = job.acknowledgement(job.tasks[0], 1)
    coordinator.receive_acknowledge_message(message)
    coordinator.receive_acknowledge_message(replace(message, attempt_id="zombie"))
    assert is_there(job, message)


def test_late_acknowledgement_is_discarded(job: AlignedJob, coordinator: CheckpointCoordinator) -> None:
    coordinator.trigger_checkpoint(CHECKPOINT)
    coordinator.receive_decline_message(job.decline(job.tasks[1], 1))
    late = job.acknowledgement(job.tasks[0], 1)
    assert coordinator.receive_acknowledge_message(late) is True
    assert not is_there(job, late)


def test_late_acknowledgement_after_another_part_had_come_is_discarded(
    job: AlignedJob, coordinator: CheckpointCoordinator
) -> None:
    coordinator.trigger_checkpoint(CHECKPOINT)
    coordinator.receive_acknowledge_message(job.acknowledgement(job.tasks[0], 1))
    coordinator.receive_decline_message(job.decline(job.tasks[1], 1))
    assert job.directories() == set()
    late = job.acknowledgement(job.tasks[1], 1)
    assert coordinator.receive_acknowledge_message(late) is True
    assert not is_there(job, late)


def test_acknowledgement_of_a_forgotten_checkpoint_is_discarded(
    job: AlignedJob, coordinator: CheckpointCoordinator
) -> None:
    for number in range(1, 18):
        coordinator.trigger_checkpoint(CHECKPOINT)
        coordinator.receive_decline_message(job.decline(job.tasks[1], number))
        job.pass_time(1)
    remembered, forgotten = job.acknowledgement(job.tasks[0], 2), job.acknowledgement(job.tasks[0], 1)
    assert coordinator.receive_acknowledge_message(remembered) is True
    assert coordinator.receive_acknowledge_message(forgotten) is False
    assert not is_there(job, forgotten)


def test_acknowledgement_of_a_checkpoint_that_never_was_is_discarded(
    job: AlignedJob, coordinator: CheckpointCoordinator
) -> None:
    message = job.acknowledgement(job.tasks[0], 7)
    assert coordinator.receive_acknowledge_message(message) is False
    assert not is_there(job, message)


def test_shared_files_of_a_late_acknowledgement_stay(job: AlignedJob, coordinator: CheckpointCoordinator) -> None:
    coordinator.trigger_checkpoint(CHECKPOINT)
    coordinator.receive_decline_message(job.decline(job.tasks[1], 1))
    uri = f"{job.storage.base_uri}/{job.job_id}/shared/{job.tasks[0].operator_id}/file"
    job.storage.write_bytes(uri, b"x")
    state = incremental(job, 1, FileStateHandle(uri, 1))
    coordinator.receive_acknowledge_message(job.acknowledgement(job.tasks[0], 1, state=state))
    assert job.storage.exists(uri)
    coordinator.trigger_checkpoint(CHECKPOINT)
    again = incremental(job, 2, FileStateHandle(uri, 1))
    assert coordinator.receive_acknowledge_message(job.acknowledgement(job.tasks[0], 2, state=again))
    assert coordinator.receive_acknowledge_message(job.acknowledgement(job.tasks[1], 2))
    assert job.status(2) == "completed"


def test_operator_without_state_is_acknowledged(job: AlignedJob, coordinator: CheckpointCoordinator) -> None:
    future = coordinator.trigger_checkpoint(CHECKPOINT)
    for task in job.tasks:
        coordinator.receive_acknowledge_message(job.acknowledgement(task, 1, state=None))
    states = future.result(0).operator_states
    assert {state.uid for state in states.values()} == {task.uid for task in job.tasks}
    assert not any(state.has_state for state in states.values())
    row = job.row(1)
    assert row.counts == {"operators": 0}
    assert job.coordinator().restore_latest_checkpointed_state(job.tasks, True)


def test_operator_without_state_is_in_the_checkpoint_beside_one_with_state(
    job: AlignedJob, coordinator: CheckpointCoordinator
) -> None:
    future = coordinator.trigger_checkpoint(CHECKPOINT)
    coordinator.receive_acknowledge_message(job.acknowledgement(job.tasks[0], 1))
    coordinator.receive_acknowledge_message(job.acknowledgement(job.tasks[1], 1, state=None))
    states = future.result(0).operator_states
    assert [states[task.operator_id].has_state for task in job.tasks] == [True, False]
    assert job.row(1).counts == {"operators": 1}


def test_acknowledgement_counts_although_other_checkpoints_expire_meanwhile(
    job: AlignedJob, coordinator: CheckpointCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for age in (1, 10, 589):
        coordinator.trigger_checkpoint(CHECKPOINT)
        job.pass_time(age)
    abort = job.rows.abort

    def slow(message: AbortCheckpoints) -> tuple[CheckpointRecord, ...]:
        aborted = abort(message)
        job.pass_time(1)
        return aborted

    monkeypatch.setattr(job.rows, "abort", slow)
    message = job.acknowledgement(job.tasks[0], 3)
    assert coordinator.receive_acknowledge_message(message)
    assert [job.status(number) for number in (1, 2, 3)] == ["aborted", "aborted", "pending"]
    assert is_there(job, message)


def test_acknowledgement_after_the_timeout_comes_too_late(job: AlignedJob, coordinator: CheckpointCoordinator) -> None:
    future = coordinator.trigger_checkpoint(CHECKPOINT)
    job.pass_time(600)
    message = job.acknowledgement(job.tasks[0], 1)
    assert coordinator.receive_acknowledge_message(message) is True
    assert reason_of(future) is CheckpointFailureReason.CHECKPOINT_EXPIRED
    assert not is_there(job, message)


def test_decline_aborts_with_its_reason(job: AlignedJob, coordinator: CheckpointCoordinator) -> None:
    future = coordinator.trigger_checkpoint(CHECKPOINT)
    reason = CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_NOT_READY
    coordinator.receive_decline_message(job.decline(job.tasks[0], 1, reason))
    assert reason_of(future) is reason
    assert job.tasks[1].heard("aborted") == [1]


def test_repeated_decline_has_no_effect(job: AlignedJob, coordinator: CheckpointCoordinator) -> None:
    coordinator.trigger_checkpoint(CHECKPOINT)
    for _ in range(2):
        coordinator.receive_decline_message(job.decline(job.tasks[0], 1))
    assert job.tasks[0].heard("aborted") == [1]


def test_decline_of_another_job_is_an_argument_error(job: AlignedJob, coordinator: CheckpointCoordinator) -> None:
    with pytest.raises(InvalidConfigurationError, match="Expected declines of job"):
        coordinator.receive_decline_message(replace(job.decline(job.tasks[0], 1), job_id=job_id_of("other")))


def test_decline_of_nothing_and_after_the_shutdown_is_ignored(
    job: AlignedJob, coordinator: CheckpointCoordinator
) -> None:
    coordinator.receive_decline_message(None)
    coordinator.receive_decline_message(job.decline(job.tasks[0], 5))
    coordinator.shutdown()
    coordinator.receive_decline_message(replace(job.decline(job.tasks[0], 1), job_id=job_id_of("other")))
    assert job.tasks[0].told == []


def test_state_of_a_declined_checkpoint_goes_and_the_row_says_so(
    job: AlignedJob, coordinator: CheckpointCoordinator
) -> None:
    coordinator.trigger_checkpoint(CHECKPOINT)
    coordinator.receive_acknowledge_message(job.acknowledgement(job.tasks[0], 1))
    location = job.location(1)
    assert job.storage.exists(location)
    coordinator.receive_decline_message(job.decline(job.tasks[1], 1))
    assert not job.storage.exists(location)
    assert job.row(1).discarded_at is not None
