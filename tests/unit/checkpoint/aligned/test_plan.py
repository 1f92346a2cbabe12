"""Which request comes next, who takes part in its checkpoint, and what it holds of those that do not answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.checkpoint.aligned.plan import (
    MAX_QUEUED_REQUESTS,
    CheckpointPlanCalculator,
    CheckpointRequestDecider,
    Choice,
    ExecutionStatus,
    in_order,
)
from airflow_provider_statecheck.checkpoint.aligned.snapshot_contents import (
    require_whole_union_state,
    unanswered_states,
)
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import operator_id_of
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, CheckpointType
from airflow_provider_statecheck.checkpoint.records import RequestStatus, SnapshotRequest
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    DistributionMode,
    OperatorState,
    OperatorStateHandle,
    OperatorStateMeta,
    OperatorSubtaskState,
)
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from tests.aligned_job import AlignedTask
from tests.unit.checkpoint.aligned.stand_ins import START, make_request, seconds

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


CHECKPOINT = CheckpointProperties.for_checkpoint()
FORCED = replace(CHECKPOINT, force=True)
SAVEPOINT = CheckpointProperties.for_savepoint(force=False)
FORCED_SAVEPOINT = CheckpointProperties.for_savepoint()


def make_decider(max_concurrent: int = 1, min_pause: float = 0, max_queued: int = 3) -> CheckpointRequestDecider:
    return CheckpointRequestDecider(max_concurrent=max_concurrent, min_pause_seconds=min_pause, max_queued=max_queued)


def choose(decider: CheckpointRequestDecider, *queue: SnapshotRequest, **state) -> Choice:
    calm = {"is_triggering": False, "pending_count": 0, "cleanings": 0, "last_completed_at": None, "now": START}
    return decider.choose(queue, **{**calm, **state})


def test_savepoints_then_forced_then_manual_then_periodic_then_older_ones_go_first():
    expected = [
        make_request("a", properties=FORCED_SAVEPOINT),
        make_request("b", properties=SAVEPOINT, age=9),
        make_request("c", properties=FORCED),
        make_request("d", properties=FORCED, is_periodic=True, age=9),
        make_request("e", age=8),
        make_request("f", age=7),
        make_request("g", is_periodic=True, age=9),
        make_request("h", is_periodic=True, age=1),
    ]
    assert in_order(expected[::-1]) == expected


def test_of_equally_old_requests_every_coordinator_takes_the_same():
    first, second = make_request("a"), make_request("b")
    assert in_order([first, second]) == in_order([second, first]) == [first, second]


def test_a_request_joins_a_queue_that_has_room():
    assert make_decider(max_queued=2).admit([make_request("a")], make_request("b")) == ()


@pytest.mark.parametrize("properties", [CHECKPOINT, FORCED_SAVEPOINT])
def test_a_queue_full_of_users_requests_refuses_the_new_one_whatever_it_is(properties):
    queue, new = [make_request(key) for key in "abc"], make_request("d", properties=properties)
    assert make_decider().admit(queue, new) == (new,)


def test_the_worst_periodic_request_gives_way_to_a_users_one():
    queue = [make_request("a", is_periodic=True, age=9), make_request("b", is_periodic=True), make_request("c")]
    assert make_decider().admit(queue, make_request("d")) == (queue[1],)


def test_a_new_request_that_is_the_worst_of_a_full_queue_fails_itself():
    queue, new = [make_request(key, is_periodic=True, age=9) for key in "abc"], make_request("d", is_periodic=True)
    assert make_decider().admit(queue, new) == (new,)


def test_a_request_asked_for_again_is_the_same_request():
    queue = [make_request(key) for key in "abc"]
    assert make_decider().admit(queue, make_request("c")) == ()


def test_requests_that_run_take_no_place_in_the_queue():
    running = [make_request(key, status=RequestStatus.RUNNING) for key in "abc"]
    assert make_decider().admit(running, make_request("d")) == ()
    assert choose(make_decider(), *running) == Choice()


def test_a_thousand_requests_may_wait_by_default():
    queue = [make_request(f"{n:04}") for n in range(MAX_QUEUED_REQUESTS - 1)]
    decider = CheckpointRequestDecider(max_concurrent=1, min_pause_seconds=0)
    assert decider.admit(queue, make_request("x")) == ()
    assert len(decider.admit([*queue, make_request("x")], make_request("y"))) == 1


def test_the_head_of_the_queue_runs():
    head = make_request("b", age=2)
    assert choose(make_decider(), make_request("a", age=1), head) == Choice(run=head)


@pytest.mark.parametrize(
    ("properties", "state", "runs"),
    [
        pytest.param(FORCED_SAVEPOINT, {"is_triggering": True}, False, id="another one is being triggered"),
        pytest.param(FORCED_SAVEPOINT, {"cleanings": 3}, False, id="more cleanings than concurrent checkpoints"),
        pytest.param(FORCED_SAVEPOINT, {"cleanings": 2}, True, id="as many cleanings"),
        pytest.param(CHECKPOINT, {"pending_count": 2}, False, id="as many pending as allowed"),
        pytest.param(CHECKPOINT, {"pending_count": 1}, True, id="room for another one"),
        pytest.param(FORCED_SAVEPOINT, {"pending_count": 5}, True, id="forced, however many are pending"),
    ],
)
def test_a_request_runs_when_the_work_in_progress_allows_it(properties, state, runs):
    request = make_request("a", properties=properties)
    assert choose(make_decider(2), request, make_request("b"), **state) == Choice(run=request if runs else None)


def test_nothing_runs_of_an_empty_queue():
    assert choose(make_decider()) == Choice()


def test_a_savepoint_that_is_not_forced_waits_its_turn_and_holds_up_forced_checkpoints():
    queue = make_request("a", properties=SAVEPOINT), make_request("b", properties=FORCED)
    assert choose(make_decider(1), *queue, pending_count=1) == Choice()


def test_a_periodic_request_within_the_pause_is_dropped_and_tried_again_after_the_rest_of_it():
    periodic = make_request("a", is_periodic=True)
    choice = choose(make_decider(min_pause=10), periodic, last_completed_at=START - seconds(4))
    assert choice == Choice(dropped=(periodic,), retry_in_seconds=6)


def test_a_periodic_request_runs_as_soon_as_the_pause_is_over():
    periodic = make_request("a", is_periodic=True)
    assert choose(make_decider(min_pause=10), periodic, last_completed_at=START - seconds(10)).run == periodic


def test_there_is_no_pause_before_the_first_checkpoint():
    assert choose(make_decider(min_pause=10), make_request("a", is_periodic=True)).run is not None


@pytest.mark.parametrize(
    "request_",
    [
        make_request("a"),
        make_request("a", properties=SAVEPOINT),
        make_request("a", properties=SAVEPOINT, is_periodic=True),
        make_request("a", properties=FORCED, is_periodic=True),
    ],
    ids=["manual", "savepoint", "periodic savepoint", "forced periodic"],
)
def test_only_plain_periodic_requests_keep_the_pause(request_):
    assert choose(make_decider(min_pause=10), request_, last_completed_at=START).run == request_


def test_a_periodic_request_is_not_dropped_while_the_pending_ones_alone_hold_it_up():
    periodic = make_request("a", is_periodic=True)
    assert choose(make_decider(min_pause=10), periodic, pending_count=1, last_completed_at=START) == Choice()


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"max_concurrent": 0}, "max_concurrent_checkpoints"),
        ({"min_pause": -1}, "min_pause"),
        ({"max_queued": 0}, "max_queued_requests"),
    ],
)
def test_numbers_out_of_their_range_are_refused(changes, key):
    with pytest.raises(InvalidConfigurationError, match=key):
        make_decider(**changes)


KINDS = st.sampled_from([CHECKPOINT, FORCED, SAVEPOINT, FORCED_SAVEPOINT])
REQUESTS = st.builds(
    lambda key, properties, is_periodic, age: make_request(
        str(key), properties=properties, is_periodic=is_periodic, age=age
    ),
    st.integers(),
    KINDS,
    st.booleans(),
    st.integers(0, 20),
)
QUEUES = st.lists(REQUESTS, max_size=6, unique_by=lambda r: r.request_key)


@given(QUEUES, st.integers(1, 3), st.integers(0, 4), st.integers(0, 4), st.booleans(), st.integers(0, 20))
def test_never_more_than_allowed_run_unless_forced(queue, most, pending, cleanings, is_triggering, ago):
    decider = make_decider(most, min_pause=10)
    choice = choose(
        decider,
        *queue,
        pending_count=pending,
        cleanings=cleanings,
        is_triggering=is_triggering,
        last_completed_at=START - seconds(ago),
    )
    if choice.run is not None:
        assert not is_triggering
        assert cleanings <= most
        assert pending < most or choice.run.properties.force
    assert choice.run is None or not choice.dropped
    assert (choice.retry_in_seconds is None) == (not choice.dropped)
    assert choice.retry_in_seconds is None or 0 < choice.retry_in_seconds <= 10


@given(QUEUES, st.integers(0, 3), st.integers(0, 20))
def test_a_savepoint_is_never_starved(queue, pending, ago):
    """With a forced savepoint in the queue a savepoint runs, whatever else waits, is pending or has just completed."""
    queue.append(make_request("savepoint", properties=FORCED_SAVEPOINT))
    queue = [r for r in queue if r.properties.force or not r.properties.is_savepoint]
    choice = choose(
        make_decider(1, min_pause=10), *queue, pending_count=pending, last_completed_at=START - seconds(ago)
    )
    assert choice.run is not None
    assert choice.run.properties.snapshot_type is CheckpointType.SAVEPOINT


@given(QUEUES, st.integers(0, 20))
def test_a_queue_is_emptied_by_choosing_again_and_again(queue, ago):
    """Each choice with room for a checkpoint takes one request out, so none waits for ever."""
    for _ in range(len(queue)):
        choice = choose(make_decider(1, min_pause=10), *queue, last_completed_at=START - seconds(ago))
        gone = [r for r in (choice.run, *choice.dropped) if r is not None]
        assert len(gone) == 1
        queue.remove(gone[0])
    assert queue == []


@given(st.lists(REQUESTS, max_size=12, unique_by=lambda r: r.request_key), st.integers(1, 4))
def test_arrivals_never_overfill_the_queue_nor_cost_a_user_his_place(arrivals, most):
    queue: list[SnapshotRequest] = []
    for new in arrivals:
        refused = make_decider(max_queued=most).admit(queue, new)
        assert all(r.is_periodic for r in refused if r != new)
        queue = [r for r in (*queue, new) if r not in refused]
        assert len(queue) <= most
