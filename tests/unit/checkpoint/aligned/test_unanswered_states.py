"""What a checkpoint holds of operators that did not answer."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.checkpoint.aligned.plan import CheckpointPlanCalculator, ExecutionStatus
from airflow_provider_statecheck.checkpoint.aligned.snapshot_contents import (
    require_whole_union_state,
    unanswered_states,
)
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import operator_id_of
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    DistributionMode,
    OperatorState,
    OperatorStateHandle,
    OperatorStateMeta,
    OperatorSubtaskState,
)
from tests.unit.checkpoint.aligned.stand_ins import RecordingTask


def make_state(subtasks: tuple[int, ...], mode: DistributionMode = DistributionMode.UNION, *, raw: bool = False):
    handle = OperatorStateHandle(
        states=(("offsets", OperatorStateMeta((0,), mode)),), stream=ByteStreamStateHandle("s", b"x")
    )
    subtask = OperatorSubtaskState(raw_operator=(handle,)) if raw else OperatorSubtaskState(managed_operator=(handle,))
    return OperatorState(
        operator_id=operator_id_of("source"),
        uid="source",
        parallelism=3,
        max_parallelism=128,
        subtask_states=dict.fromkeys(subtasks, subtask),
    )


def make_plan(*tasks: RecordingTask):
    return CheckpointPlanCalculator(tasks, tasks, tasks).calculate()


def test_an_operator_that_ended_is_written_as_fully_finished():
    ended = RecordingTask("source", ExecutionStatus.FINISHED, name="Source", parallelism=3, max_parallelism=64)
    assert unanswered_states(make_plan(ended, RecordingTask("sink")), {}) == {
        ended.operator_id: OperatorState(
            operator_id=ended.operator_id,
            uid="source",
            name="Source",
            parallelism=3,
            max_parallelism=64,
            is_fully_finished=True,
        )
    }


def test_an_operator_of_which_one_task_still_runs_answers_for_itself():
    plan = make_plan(RecordingTask("map", ExecutionStatus.FINISHED, "1"), RecordingTask("map", attempt_id="2"))
    assert unanswered_states(plan, {}) == {}


def test_an_operator_that_has_not_begun_keeps_the_state_it_was_restored_with():
    waiting = RecordingTask("source", ExecutionStatus.NOT_STARTED)
    restored = make_state((0, 1, 2))
    states = unanswered_states(make_plan(waiting, RecordingTask("sink")), {waiting.operator_id: restored})
    assert states == {waiting.operator_id: restored}
    assert states[waiting.operator_id] is restored


def test_an_operator_that_has_not_begun_and_was_not_restored_has_no_state():
    waiting = RecordingTask("source", ExecutionStatus.NOT_STARTED)
    assert unanswered_states(make_plan(waiting, RecordingTask("sink")), {}) == {}


def test_a_running_operator_does_not_keep_what_it_was_restored_with():
    running = RecordingTask("source")
    assert unanswered_states(make_plan(running), {running.operator_id: make_state((0,))}) == {}


@pytest.mark.parametrize("raw", [False, True])
def test_a_union_state_without_the_part_of_an_ended_subtask_is_refused(raw):
    with pytest.raises(CheckpointException, match=r"union state offsets, found none of \[2\]") as raised:
        require_whole_union_state(make_state((0, 1), raw=raw), {2})
    assert raised.value.reason is CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_CLOSING


def test_a_union_state_with_the_parts_of_all_ended_subtasks_is_whole():
    require_whole_union_state(make_state((0, 1, 2)), {2})


def test_a_running_subtask_without_state_is_nothing_to_refuse():
    require_whole_union_state(make_state((0, 1)), set())


def test_a_union_state_of_an_operator_that_ended_as_a_whole_is_not_missed():
    require_whole_union_state(make_state((0,)), {0, 1, 2})


@pytest.mark.parametrize("mode", [DistributionMode.BROADCAST, DistributionMode.SPLIT_DISTRIBUTE])
def test_state_that_every_subtask_has_or_that_is_dealt_out_may_lose_ended_subtasks(mode):
    require_whole_union_state(make_state((0, 1), mode), {2})
