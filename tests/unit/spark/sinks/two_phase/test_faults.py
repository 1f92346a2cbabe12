"""A fault at any step of a two-phase sink changes nothing in the end."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from airflow_provider_statecheck.exceptions import CoordinatorError, CorruptStateError, StorageError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.testing.faults import FaultMode, FaultPlan
from tests.unit.spark.sinks.two_phase.folder_sink import FolderSink, keys_in
from tests.unit.spark.sinks.two_phase.history import Job

STEPS: list[tuple[type[Any], str]] = [
    (FolderSink, "commit_transaction"),
    (FolderSink, "abort_transaction"),
    (FolderSink, "pre_commit"),
    (CheckpointStorage, "write_bytes"),
    (CheckpointStorage, "read_bytes"),
    (CheckpointStorage, "list_files"),
]

EVERY = 4
PARTS = [pytest.param(part, marks=[] if part == 0 else pytest.mark.soak) for part in range(EVERY)]


@contextmanager
def planned(plan: FaultPlan) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for kind, name in STEPS:
            patch.setattr(kind, name, counted(getattr(kind, name), name, plan))
        yield


def counted(method: Any, name: str, plan: FaultPlan) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return plan.carry_out(name, lambda: method(*args, **kwargs), StorageError)

    return call


def history(folder: Path) -> None:
    """Go through a success, a fall-back, and a fresh start."""
    job = Job(lambda: FolderSink(folder))
    job.run(3)
    job.fall_back(2)
    job.run(4)
    job.start_over()
    job.run(2)


@pytest.mark.parametrize("mode", [FaultMode.ERROR, FaultMode.REPLY_LOST])
@pytest.mark.parametrize("part", PARTS)
def test_a_fault_at_any_step_changes_nothing_in_the_end(tmp_path, mode, part):
    counting = FaultPlan()
    with planned(counting):
        history(tmp_path / "undisturbed")
    for point, name in list(enumerate(counting.calls, 1))[part::EVERY]:
        folder = tmp_path / str(point)
        with planned(FaultPlan(point=point, mode=mode)):
            history(folder)
        assert keys_in(folder) == [1, 2], f"{mode} at call {point}, {name}"


STORIES = st.lists(
    st.tuples(st.sampled_from(["run", "fall_back", "start_over", "unreadable"]), st.integers(1, 3)), max_size=6
)


@settings(max_examples=30, deadline=None)
@given(story=STORIES, points=st.lists(st.integers(1, 60), max_size=4))
def test_after_any_history_the_output_is_that_of_the_last_success(story, points):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = Job(lambda: FolderSink(folder))
        faults = iter(points)
        for what, count in story:
            with planned(FaultPlan(point=next(faults, None))):
                _tell(job, what, count)
        job.run(5)
        assert keys_in(folder) == [1, 2, 3, 4, 5]


def _tell(job: Job, what: str, count: int) -> None:
    try:
        if what == "run":
            job.attempt(count + 1)
        elif what == "unreadable":
            job.attempt(4, unreadable=count)
        else:
            job.start_over() if what == "start_over" else job.fall_back(count)
    except (CorruptStateError, CoordinatorError):
        job.start_over()
    except StorageError:
        return
