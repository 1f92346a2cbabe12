"""A fault at every call on the storage, and any history of attempts: the output is that of an undisturbed run."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given, settings, strategies as st

from airflow_provider_statecheck.exceptions import CoordinatorError, CorruptStateError, StorageError
from airflow_provider_statecheck.testing.faults import FaultMode, FaultPlan
from tests.unit.spark.sinks.attempts import committed_in, hidden_in, seen_in
from tests.unit.spark.sinks.history import Job, planned

FAULTS = [FaultMode.ERROR, FaultMode.REPLY_LOST]


def going_on(job: Job) -> int:
    job.run(until=2)
    return 2


def falling_back(job: Job) -> int:
    job.run(until=2)
    job.fall_back(1)
    job.run(until=2)
    return 2


def starting_over(job: Job) -> int:
    job.run(until=1)
    job.start_over()
    job.run(until=1)
    return 1


@pytest.mark.parametrize("mode", FAULTS)
@pytest.mark.parametrize(
    ("kind", "history"),
    [("local", falling_back), ("memory", going_on), ("memory", falling_back), ("memory", starting_over)],
)
def test_a_fault_at_any_call_changes_nothing_in_the_end(tmp_path, kind, history, mode):
    base = f"file://{tmp_path}" if kind == "local" else f"memory://{uuid.uuid4().hex}"
    undisturbed = FaultPlan()
    with planned(undisturbed):
        history(Job(f"{base}/undisturbed"))
    assert len(undisturbed.calls) > 20
    for point in range(1, len(undisturbed.calls) + 1):
        path = f"{base}/{point}"
        with planned(FaultPlan(point, mode)):
            last = history(Job(path))
        expected = list(range(1, last + 1))
        assert (seen_in(path), committed_in(path)) == (expected, expected), undisturbed.calls[point - 1]
        assert hidden_in(path, "staging") == hidden_in(path, "intents") == []
        assert not set(hidden_in(path, "commits")) & set(hidden_in(path, "retracted"))


runs = st.fixed_dictionaries(
    {
        "until": st.integers(1, 4),
        "unreadable": st.integers(0, 2),
        "point": st.none() | st.integers(1, 90),
        "mode": st.sampled_from(FAULTS),
    }
)
steps = st.one_of(runs, runs, runs, st.tuples(st.just("fall back"), st.integers(1, 3)), st.just("start over"))


@settings(max_examples=100, deadline=None)
@given(history=st.lists(steps, max_size=7))
def test_after_any_history_the_output_is_that_of_the_last_success(history):
    path = f"memory://{uuid.uuid4().hex}/table"
    job = Job(path)
    for step in history:
        if isinstance(step, dict):
            _attempt(job, **step)
            # Whatever happened, a reader of the ledger sees the output up to some checkpoint, and nothing twice.
            seen = committed_in(path)
            assert seen == list(range(1, len(seen) + 1))
        elif step == "start over":
            job.start_over()
        else:
            job.fall_back(step[1])
    job.run(until=2)
    expected = list(range(1, job.completed[-1].position + 1))
    assert (seen_in(path), committed_in(path)) == (expected, expected)


def _attempt(job, until, unreadable, point, mode):
    try:
        with planned(FaultPlan(point, mode)):
            job.attempt(until, min(unreadable, len(job.completed)))
    except (CorruptStateError, CoordinatorError):
        job.start_over()
    except StorageError:
        return
