"""Who takes part in an aligned checkpoint."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.checkpoint.aligned.plan import CheckpointPlanCalculator, ExecutionStatus
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import operator_id_of
from tests.unit.checkpoint.aligned.stand_ins import RecordingTask

NOT_STARTED, STARTING = ExecutionStatus.NOT_STARTED, ExecutionStatus.STARTING
RUNNING, FINISHED = ExecutionStatus.RUNNING, ExecutionStatus.FINISHED


class Job:
    """A source, a map behind it and a sink; each in the given status."""

    def __init__(self, source: ExecutionStatus, middle: ExecutionStatus, sink: ExecutionStatus) -> None:
        self.source = RecordingTask("source", source)
        self.middle = RecordingTask("middle", middle)
        self.sink = RecordingTask("sink", sink)
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
        f"'middle' to be finished or not_started or running, found attempt '1' {status.value}"
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
    assert "'middle' to be not_started or running, found attempt '1' finished" in Job(
        RUNNING, FINISHED, RUNNING
    ).refusal(allow=False)


def test_an_operator_of_which_one_task_still_runs_is_not_fully_finished():
    ended, running = RecordingTask("map", FINISHED, "1"), RecordingTask("map", RUNNING, "2")
    plan = CheckpointPlanCalculator([ended, running], [ended, running], [ended, running]).calculate()
    assert plan.finished_tasks == (ended,)
    assert plan.fully_finished_operators == frozenset()


def test_of_a_job_whose_tasks_all_finished_there_is_nothing_to_checkpoint():
    assert "nothing to checkpoint" in Job(FINISHED, FINISHED, FINISHED).refusal()


def test_a_job_of_which_nothing_runs_yet_or_any_more_has_nothing_to_checkpoint():
    assert "nothing to checkpoint" in Job(NOT_STARTED, NOT_STARTED, NOT_STARTED).refusal()
    assert "nothing to checkpoint" in Job(FINISHED, NOT_STARTED, NOT_STARTED).refusal()


def test_a_checkpoint_that_waits_for_nobody_is_refused():
    task = RecordingTask("source")
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
    first, second = RecordingTask("first", FINISHED), RecordingTask("second")
    plan = CheckpointPlanCalculator([first, second, second], [first, second], []).calculate()
    assert plan.tasks_to_trigger == (second,)


def test_a_plan_shows_each_task_at_one_moment():
    """A task that ends while the plan is made is either waited for or finished, never both or neither."""
    job = Job(RUNNING, RUNNING, RUNNING)
    asked = iter([RUNNING, FINISHED, FINISHED, FINISHED])

    class Ending(RecordingTask):
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
