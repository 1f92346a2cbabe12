"""Which request comes next, and which requests a full queue refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.checkpoint.aligned.decider import (
    MAX_QUEUED_REQUESTS,
    CheckpointRequestDecider,
    Choice,
    in_order,
)
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, CheckpointType
from airflow_provider_statecheck.checkpoint.records import CheckpointRequest, RequestStatus
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from tests.unit.checkpoint.aligned.requests import START, make_request, seconds

CHECKPOINT = CheckpointProperties.for_checkpoint()
FORCED = replace(CHECKPOINT, force=True)
SAVEPOINT = CheckpointProperties.for_savepoint(force=False)
FORCED_SAVEPOINT = CheckpointProperties.for_savepoint()


def make_decider(max_concurrent: int = 1, min_pause: float = 0, max_queued: int = 3) -> CheckpointRequestDecider:
    return CheckpointRequestDecider(max_concurrent=max_concurrent, min_pause_seconds=min_pause, max_queued=max_queued)


def choose(decider: CheckpointRequestDecider, *queue: CheckpointRequest, **state) -> Choice:
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
    queue: list[CheckpointRequest] = []
    for new in arrivals:
        refused = make_decider(max_queued=most).admit(queue, new)
        assert all(r.is_periodic for r in refused if r != new)
        queue = [r for r in (*queue, new) if r not in refused]
        assert len(queue) <= most
