"""A fault at every call on the storage and the table, and any history of attempts: the rows are those of an undisturbed run."""

from __future__ import annotations

import tempfile

import pytest
from hypothesis import given, settings, strategies as st

from airflow_provider_statecheck.exceptions import CoordinatorError, CorruptStateError, StorageError
from airflow_provider_statecheck.testing.faults import FaultMode, FaultPlan
from tests.unit.spark.sinks.delta.attempts import delta_job, keys_of, planned, table_at, versions_of

FAULTS = [FaultMode.ERROR, FaultMode.REPLY_LOST]


def going_on(job):
    job.run(until=2)
    return 2


def falling_back(job):
    job.run(until=2)
    job.fall_back(1)
    job.run(until=2)
    return 2


def starting_over(job):
    job.run(until=1)
    job.start_over()
    job.run(until=1)
    return 1


@pytest.mark.parametrize("mode", FAULTS)
@pytest.mark.parametrize("history", [going_on, falling_back, starting_over])
def test_a_fault_at_any_call_changes_nothing_in_the_end(tmp_path, history, mode):
    undisturbed = FaultPlan()
    with planned(undisturbed):
        history(delta_job(f"file://{tmp_path}/undisturbed"))
    assert {"create", "commit", "snapshot", "write", "size"} <= set(undisturbed.calls)
    for point in range(1, len(undisturbed.calls) + 1):
        path = f"file://{tmp_path}/{point}"
        with planned(FaultPlan(point, mode)):
            last = history(delta_job(path))
        assert keys_of(path) == list(range(1, last + 1)), undisturbed.calls[point - 1]
        # No version ever has a row twice.
        assert all(keys == sorted(set(keys)) for keys in versions_of(path))


runs = st.fixed_dictionaries(
    {
        "until": st.integers(1, 4),
        "unreadable": st.integers(0, 2),
        "point": st.none() | st.integers(1, 60),
        "mode": st.sampled_from(FAULTS),
    }
)
steps = st.one_of(runs, runs, runs, st.tuples(st.just("fall back"), st.integers(1, 3)), st.just("start over"))


@settings(max_examples=40, deadline=None)
@given(history=st.lists(steps, max_size=6))
def test_after_any_history_the_rows_are_those_of_the_last_success(history):
    with tempfile.TemporaryDirectory() as folder:
        path = f"file://{folder}/table"
        job = delta_job(path)
        for step in history:
            if isinstance(step, dict):
                _attempt(job, **step)
            elif step == "start over":
                job.start_over()
            else:
                job.fall_back(step[1])
        job.run(until=2)
        assert keys_of(path) == list(range(1, job.completed[-1].position + 1))
        # Whatever happened, each version has the rows up to some checkpoint, and nothing twice.
        assert all(keys == list(range(1, len(keys) + 1)) for keys in versions_of(path))
        assert set(table_at(path).file_uris())


def _attempt(job, until, unreadable, point, mode):
    try:
        with planned(FaultPlan(point, mode)):
            job.attempt(until, min(unreadable, len(job.completed)))
    except (CorruptStateError, CoordinatorError):
        job.start_over()
    except StorageError:
        return
