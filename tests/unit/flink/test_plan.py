"""Who takes part in a checkpoint, and what it holds of those that do not answer."""

from __future__ import annotations

import pytest

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
from airflow_provider_statecheck.flink.contents import require_whole_union_state, unanswered_states
from airflow_provider_statecheck.flink.plan import CheckpointPlanCalculator, ExecutionStatus
from tests.aligned_job import AlignedTask

NOT_STARTED, STARTING = ExecutionStatus.NOT_STARTED, ExecutionStatus.STARTING
RUNNING, FINISHED = ExecutionStatus.RUNNING, ExecutionStatus.FINISHED


class Job:
    """A source, a map behind it and a sink; each in the given status."""

    def __init__(self, source: ExecutionStatus, middle: ExecutionStatus, sink: ExecutionStatus) -> None:
        self.source = AlignedTask("source", source)
        self.middle = AlignedTask("middle", middle)
        self.sink = AlignedTask("sink", sink)
        self.all = [self.source, self.middle, self.sink]

    def plan(self, *, allow: bool = True):
        return CheckpointPlanCalculator([self.source], self.all, self.all, allow).calculate()

    def refusal(self, *, allow: bool = True) -> str:
        with pytest.raises(CheckpointException) as raised:
            self.plan(allow=allow)
        assert raised.value.reason is CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING
        return str(raised.value)


def test_of_running_tasks_the_given_ones_are_triggered_waited_for_and_committed_to():
    job = Job(RUNNING, RUNNING, RUNNING)
    plan = CheckpointPlanCalculator([job.source], [job.source, job.middle], [job.sink]).calculate()
    assert plan.tasks_to_trigger == (job.source,)
    assert plan.tasks_to_wait_for == (job.source, job.middle)
    assert plan.tasks_to_commit_to == (job.sink,)
    assert (plan.finished_tasks, plan.fully_finished_operators, plan.not_started) == ((), frozenset(), ())


@pytest.mark.parametrize("status", [STARTING, ExecutionStatus.CANCELED, ExecutionStatus.FAILED])
def test_a_required_task_that_can_take_no_part_refuses_the_checkpoint(status):
    assert (
        f"'middle' to be finished or not_started or running, found attempt 'middle/1' {status.value}"
        in Job(RUNNING, status, RUNNING).refusal()
    )


@pytest.mark.parametrize("status", [STARTING, ExecutionStatus.FAILED])
def test_a_task_that_is_only_to_be_triggered_is_required_too(status):
    job = Job(status, RUNNING, RUNNING)
    with pytest.raises(CheckpointException, match="'source'"):
        CheckpointPlanCalculator([job.source], [job.middle], [job.sink]).calculate()


def test_a_task_that_is_only_to_be_committed_to_is_not_required():
    job = Job(RUNNING, RUNNING, ExecutionStatus.FAILED)
    plan = CheckpointPlanCalculator([job.source], [job.source], [job.source, job.sink]).calculate()
    assert plan.tasks_to_commit_to == (job.source,)


def test_a_finished_task_counts_as_acknowledged_and_is_told_nothing():
    job = Job(RUNNING, FINISHED, RUNNING)
    plan = job.plan()
    assert plan.finished_tasks == (job.middle,)
    assert plan.fully_finished_operators == {operator_id_of("middle")}
    assert plan.tasks_to_wait_for == plan.tasks_to_commit_to == (job.source, job.sink)


def test_a_finished_task_refuses_the_checkpoint_where_that_is_not_allowed():
    assert "'middle' to be not_started or running, found attempt 'middle/1' finished" in Job(
        RUNNING, FINISHED, RUNNING
    ).refusal(allow=False)


def test_an_operator_of_which_one_task_still_runs_is_not_fully_finished():
    ended, running = AlignedTask("map", FINISHED, "1"), AlignedTask("map", RUNNING, "2")
    plan = CheckpointPlanCalculator([ended, running], [ended, running], [ended, running]).calculate()
    assert plan.finished_tasks == (ended,)
    assert plan.fully_finished_operators == frozenset()


@pytest.mark.parametrize(
    "statuses",
    [(FINISHED, FINISHED, FINISHED), (NOT_STARTED, NOT_STARTED, NOT_STARTED), (FINISHED, NOT_STARTED, NOT_STARTED)],
)
def test_a_job_of_which_nothing_runs_yet_or_any_more_has_nothing_to_checkpoint(statuses):
    assert "nothing to checkpoint" in Job(*statuses).refusal()


def test_a_checkpoint_that_waits_for_nobody_is_refused():
    task = AlignedTask("source")
    with pytest.raises(CheckpointException, match="nothing to checkpoint"):
        CheckpointPlanCalculator([task], [], [task]).calculate()


def test_a_task_that_has_not_started_is_neither_waited_for_nor_committed_to():
    job = Job(RUNNING, RUNNING, NOT_STARTED)
    plan = job.plan()
    assert plan.not_started == (job.sink,)
    assert plan.tasks_to_wait_for == plan.tasks_to_commit_to == (job.source, job.middle)
    assert plan.fully_finished_operators == frozenset()


def test_a_task_that_has_not_started_is_allowed_where_finished_ones_are_not():
    job = Job(RUNNING, NOT_STARTED, NOT_STARTED)
    assert job.plan(allow=False).not_started == (job.middle, job.sink)


def test_tasks_behind_one_that_finished_are_triggered_themselves():
    job = Job(FINISHED, RUNNING, NOT_STARTED)
    assert job.plan().tasks_to_trigger == (job.middle,)


def test_no_task_is_triggered_twice():
    first, second = AlignedTask("first", FINISHED), AlignedTask("second")
    plan = CheckpointPlanCalculator([first, second, second], [first, second], []).calculate()
    assert plan.tasks_to_trigger == (second,)


def test_a_plan_shows_each_task_at_one_moment():
    """A task that ends while the plan is made is either waited for or finished, never both or neither."""
    job = Job(RUNNING, RUNNING, RUNNING)
    asked = iter([RUNNING, FINISHED, FINISHED, FINISHED])

    class Ending(AlignedTask):
        @property
        def status(self) -> ExecutionStatus:
            return next(asked)

        @status.setter
        def status(self, _: ExecutionStatus) -> None:
            pass

    ending = Ending("ending")
    plan = CheckpointPlanCalculator([job.source], [job.source, ending], [ending]).calculate()
    assert (ending in plan.tasks_to_wait_for) != (ending in plan.finished_tasks)
    assert (ending in plan.tasks_to_wait_for) == (ending in plan.tasks_to_commit_to)


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


def make_plan(*tasks: AlignedTask):
    return CheckpointPlanCalculator(tasks, tasks, tasks).calculate()


def test_an_operator_that_ended_is_written_as_fully_finished():
    ended = AlignedTask("source", ExecutionStatus.FINISHED, name="Source", parallelism=3, max_parallelism=64)
    assert unanswered_states(make_plan(ended, AlignedTask("sink")), {}) == {
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
    plan = make_plan(AlignedTask("map", ExecutionStatus.FINISHED, "1"), AlignedTask("map", attempt_id="2"))
    assert unanswered_states(plan, {}) == {}


def test_an_operator_that_has_not_begun_keeps_the_state_it_was_restored_with():
    waiting = AlignedTask("source", ExecutionStatus.NOT_STARTED)
    restored = make_state((0, 1, 2))
    states = unanswered_states(make_plan(waiting, AlignedTask("sink")), {waiting.operator_id: restored})
    assert states == {waiting.operator_id: restored}
    assert states[waiting.operator_id] is restored


def test_an_operator_that_has_not_begun_and_was_not_restored_has_no_state():
    waiting = AlignedTask("source", ExecutionStatus.NOT_STARTED)
    assert unanswered_states(make_plan(waiting, AlignedTask("sink")), {}) == {}


def test_a_running_operator_does_not_keep_what_it_was_restored_with():
    running = AlignedTask("source")
    assert unanswered_states(make_plan(running), {running.operator_id: make_state((0,))}) == {}


@pytest.mark.parametrize("raw", [False, True])
def test_a_union_state_without_the_part_of_an_ended_subtask_is_refused(raw):
    with pytest.raises(CheckpointException, match=r"union state offsets, found none of \[2\]") as raised:
        require_whole_union_state(make_state((0, 1), raw=raw), {2})
    assert raised.value.reason is CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_CLOSING


@pytest.mark.parametrize(
    ("state", "ended"),
    [
        pytest.param(make_state((0, 1, 2)), {2}, id="all ended subtasks have given their parts"),
        pytest.param(make_state((0, 1)), set(), id="a subtask without state is running"),
        pytest.param(make_state((0,)), {0, 1, 2}, id="the operator has ended as a whole"),
        pytest.param(make_state((0, 1), DistributionMode.BROADCAST), {2}, id="every subtask has the state"),
        pytest.param(make_state((0, 1), DistributionMode.SPLIT_DISTRIBUTE), {2}, id="the state is dealt out"),
    ],
)
def test_a_state_from_which_a_restore_misses_nothing_is_whole(state, ended):
    require_whole_union_state(state, ended)
