"""Which checkpoint of a job a fork begins at."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.messages import RestoreSource
from airflow_provider_statecheck.checkpoint.properties import RestoreMode
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    IncompatibleCheckpointError,
    InvalidConfigurationError,
)
from airflow_provider_statecheck.gateway.time_travel import find_fork_source, fork_name
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.contracts.runs_of_a_job import day
from tests.messages import make_owner
from tests.unit.written_stage import WrittenStage

UID = "aggregate"
KEPT: dict[str, Any] = {"num_retained": 2, "retained_runs": 9}


@pytest.fixture
def stage(tmp_path: Any) -> WrittenStage:
    return WrittenStage(CheckpointStorage.open(f"file://{tmp_path}"))


def work(stage: WrittenStage, owner: Any, checkpoints: int = 1) -> None:
    attempt = stage.attempt(owner=owner, **KEPT)
    for _ in range(checkpoints):
        stage.take(attempt)
    attempt.finish(AttemptStatus.FINISHED)


def found(stage: WrittenStage, wanted: str, uid: str = UID, **renamed: str) -> RestoreSource:
    source = find_fork_source(
        stage.coordinator,
        stage.storage,
        "sales",
        wanted,
        uid=uid,
        renamed_uids=renamed,
        allow_non_restored_state=False,
    )
    assert source is not None
    return source


def found_id(stage: WrittenStage, wanted: str) -> int:
    source = found(stage, wanted)
    assert (source.problem, source.mode) == (None, RestoreMode.NO_CLAIM)
    return int(source.pointer.rpartition("-")[2])


@pytest.fixture
def week(stage: WrittenStage) -> WrittenStage:
    """Return a job with two checkpoints of the fourth day and one of each other."""
    for number in (1, 2, 4, 5):
        work(stage, day(number), 2 if number == 4 else 1)
    return stage


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("2", 2),
        ("run:2026-01-02T00:00:00+00:00", 2),
        ("run:2026-01-04T00:00:00+00:00", 4),
        ("before:2026-01-05T00:00:00+00:00", 4),
        ("before:2026-01-04", 2),
        ("before:2026-01-03", 2),
        ("before:2027-01-01", 5),
    ],
)
def test_a_checkpoint_is_named_by_its_id_its_run_or_the_run_after_it(
    week: WrittenStage, wanted: str, expected: int
) -> None:
    assert found_id(week, wanted) == expected


def test_a_run_with_a_date_is_also_named_by_its_id(stage: WrittenStage) -> None:
    work(stage, day(1))
    work(stage, day(2))
    assert found_id(stage, f"run:{day(1).run_id}") == 1


def test_a_checkpoint_is_named_by_its_directory(week: WrittenStage) -> None:
    pointer = week.coordinator.describe(job_id_of("sales")).checkpoints[-1].location
    assert found(week, pointer).pointer == pointer


def test_of_runs_without_a_date_what_they_took_tells_which_came_first(stage: WrittenStage) -> None:
    for name in ("one", "two", "three"):
        work(stage, make_owner(run_key=name, run_id=name))
    assert found_id(stage, "before:two") == 1


def test_before_a_run_is_what_it_began_at_though_that_is_of_a_run_without_a_date(stage: WrittenStage) -> None:
    for owner in (day(1), make_owner(run_key="asset__7", run_id="asset__7"), day(2)):
        work(stage, owner)
    assert found_id(stage, f"before:{day(2).run_key}") == 2


def test_before_a_run_is_what_the_state_goes_back_to_and_not_what_was_given_up(stage: WrittenStage) -> None:
    work(stage, day(4))
    stage.attempt(owner=day(4, clear_marker="9/9"), **KEPT).finish(AttemptStatus.FAILED)
    assert found(stage, "before:2026-01-05").problem is not None
    assert found_id(stage, "1") == 1


@pytest.mark.parametrize("wanted", ["7", "run:2026-01-03", "before:2026-01-01", "before:asset__7"])
def test_one_that_is_not_retained_is_an_error_only_where_nothing_else_is_left(week: WrittenStage, wanted: str) -> None:
    source = found(week, wanted)
    assert source.problem is not None
    assert "found 5 of run '2026-01-05T00:00:00+00:00'" in source.problem
    with pytest.raises(CheckpointNotFoundError, match="retained_runs"):
        week.attempt(fork_name("sales", "x"), restore_from=source)


def test_a_job_that_is_not_there_is_one_without_checkpoints(stage: WrittenStage) -> None:
    assert "There is no job 'sales'" in str(found(stage, "1").problem)


@pytest.mark.parametrize("wanted", ["", "newest", "2026-01-01", "1.5", "-1"])
def test_what_names_no_checkpoint_is_refused(week: WrittenStage, wanted: str) -> None:
    with pytest.raises(InvalidConfigurationError, match="from_checkpoint"):
        found(week, wanted)


def test_a_stage_that_changed_its_uid_finds_what_it_took_before(week: WrittenStage) -> None:
    assert found(week, "2", "totals", **{UID: "totals"}).problem is None
    assert found(week, "2", "totals").problem is not None


def test_a_directory_of_another_operator_is_refused(week: WrittenStage) -> None:
    pointer = week.coordinator.describe(job_id_of("sales")).checkpoints[-1].location
    with pytest.raises(IncompatibleCheckpointError):
        found(week, pointer, "other")


def test_a_fork_goes_on_through_its_retries_and_touches_nothing_of_the_job(week: WrittenStage) -> None:
    before = week.coordinator.describe(job_id_of("sales"))
    name = fork_name("sales", "again")
    fork = week.attempt(name, owner=day(3), restore_from=found(week, "before:2026-01-03"))
    restored = fork.restore()
    assert restored is not None
    assert restored.document.job_name == "sales"
    assert restored.document.checkpoint_id == 2
    week.take(fork)
    fork.finish(AttemptStatus.FAILED)
    # The job has gone on meanwhile, and what the fork began at is gone.
    source = RestoreSource(pointer="gone", metadata_uri="", metadata_size=0, metadata_sha256="", problem="gone")
    retry = week.attempt(name, owner=day(3), restore_from=source)
    again = retry.restore()
    assert again is not None
    assert again.document.job_name == name
    after = week.coordinator.describe(job_id_of("sales"))
    assert (after.operators, after.attempts, after.checkpoints) == (
        before.operators,
        before.attempts,
        before.checkpoints,
    )
