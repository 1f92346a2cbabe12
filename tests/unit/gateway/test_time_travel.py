"""Restores of an earlier checkpoint, and forks of a run."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of
from airflow_provider_statecheck.checkpoint.messages import RestoreSource
from airflow_provider_statecheck.checkpoint.properties import RestoreMode
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointRecord, OnClear
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    IncompatibleCheckpointError,
    InvalidConfigurationError,
)
from airflow_provider_statecheck.gateway.time_travel import (
    AsOf,
    checkpoints_as_of,
    find_checkpoint,
    find_fork_source,
    fork_name,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.contracts.runs_of_a_job import day
from tests.messages import ManualClock, complete_checkpoint, make_owner, make_registration, present
from tests.sqlite_rows import new_store
from tests.unit.written_stage import WrittenStage


class Job:
    """Two runs, each with two checkpoints an hour after each other, of which three are retained."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = new_store(self.clock)
        self.coordinator = AttemptCoordinator(self.store)
        self.taken = [record for number in (1, 2) for record in self._run(number)]

    def _run(self, number: int) -> list[CheckpointRecord]:
        owner = make_owner(run_key=f"2026-01-0{number}", run_id=f"scheduled__{number}", clear_marker=str(number))
        registration = make_registration(owner=owner, num_retained=3, on_clear="resume")
        attempt = self.coordinator.register(registration).attempt
        records = []
        for _ in range(2):
            self.clock.advance(3600)
            reply = complete_checkpoint(self.coordinator, attempt)
            assert reply.checkpoint is not None
            records.append(reply.checkpoint)
        return records

    def add_operator(self) -> CheckpointRecord:
        """Complete a checkpoint of another operator."""
        self.clock.advance(3600)
        attempt = self.coordinator.register(make_registration(uid="totals")).attempt
        return present(complete_checkpoint(self.coordinator, attempt).checkpoint)

    def as_of(self, **wanted: Any) -> list[int]:
        """Return the ids of the checkpoints of all operators."""
        view = self.coordinator.describe(job_id_of("sales"))
        return [each.checkpoint_id for each in checkpoints_as_of(view, AsOf(**wanted))]

    def find(self, **wanted: Any) -> str:
        return find_checkpoint("sales", "aggregate", metadata=self.coordinator, **wanted)


@pytest.fixture
def job() -> Job:
    return Job()


def test_newest_is_found_where_nothing_else_is_said(job: Job) -> None:
    assert job.find() == job.taken[3].location


def test_checkpoint_is_found_by_its_id(job: Job) -> None:
    for each in job.taken[1:]:
        assert job.find(checkpoint_id=each.checkpoint_id) == each.location


def test_newest_of_a_run_is_found_by_its_date_or_its_id(job: Job) -> None:
    assert job.find(run="2026-01-01") == job.find(run="scheduled__1") == job.taken[1].location
    assert job.find(run="2026-01-02") == job.taken[3].location
    assert job.find(run="2026-01-02T01:00:00+01:00") == job.taken[3].location


def test_newest_that_was_complete_at_a_time_is_found(job: Job) -> None:
    moment = present(job.taken[2].completed_at)
    assert job.find(at=moment) == job.taken[2].location
    assert job.find(at=moment - timedelta(seconds=1)) == job.taken[1].location


def test_checkpoint_that_is_not_retained_is_not_found_and_those_that_are_are_named(job: Job) -> None:
    for wanted in ({"checkpoint_id": job.taken[0].checkpoint_id}, {"run": "none"}, {"at": job.taken[0].completed_at}):
        with pytest.raises(CheckpointNotFoundError, match=job.taken[3].location):
            job.find(**wanted)


def test_unknown_job_or_stage_is_told(job: Job) -> None:
    with pytest.raises(CheckpointNotFoundError):
        find_checkpoint("none", "aggregate", metadata=job.coordinator)
    with pytest.raises(CheckpointNotFoundError, match="'aggregate'"):
        find_checkpoint("sales", "none", metadata=job.coordinator)


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"run": "2026-01-01", "checkpoint_id": 1}, "one of checkpoint_id, run and at"),
        ({"at": datetime(2026, 1, 1, tzinfo=UTC), "checkpoint_id": 1}, "one of"),
        ({"pointer": "file:///x", "checkpoint_id": 1}, "one of"),
        ({"checkpoint_id": 0}, "1 or more"),
        ({"checkpoint_id": "1"}, "1 or more"),
        ({"at": datetime(2026, 1, 1)}, "zone"),  # noqa: DTZ001 - that is what is refused
        ({"at": "2026-01-01T00:00:00Z"}, "zone"),
    ],
)
def test_contradictory_and_unusable_conditions_are_rejected(
    job: Job, conditions: dict[str, Any], expected: str
) -> None:
    with pytest.raises(InvalidConfigurationError, match=expected):
        (job.as_of if "pointer" in conditions else job.find)(**conditions)


def test_newest_of_each_operator_at_a_time_are_found(job: Job) -> None:
    other = job.add_operator()
    assert other.completed_at is not None
    assert job.as_of(at=other.completed_at) == [4, 5]
    assert job.as_of(at=other.completed_at - timedelta(seconds=1)) == [4]
    assert job.as_of(at=job.taken[2].completed_at) == [3]
    with pytest.raises(CheckpointNotFoundError, match=r"complete at .* of job 'sales', found 2 \("):
        job.as_of(at=job.taken[0].completed_at)


def test_checkpoint_of_any_operator_is_found_by_its_id_or_its_pointer(job: Job) -> None:
    other = job.add_operator()
    for each in (job.taken[1], other):
        assert job.as_of(checkpoint_id=each.checkpoint_id) == [each.checkpoint_id]
        assert job.as_of(pointer=each.location + "/") == [each.checkpoint_id]


def test_savepoint_is_found_under_every_name_of_its_scheme(job: Job) -> None:
    with job.store.transaction(JobId(job.taken[1].job_id)) as tx:
        tx.update_checkpoint(replace(job.taken[1], location="s3a://lake/x"), expected=job.taken[1].status)
    assert job.as_of(pointer="s3://lake/x") == [job.taken[1].checkpoint_id]


def test_pointer_that_is_none_of_the_jobs_is_not_found(job: Job) -> None:
    for pointer in (job.taken[0].location, "memory://elsewhere/savepoint-1"):
        with pytest.raises(CheckpointNotFoundError, match=f"at {pointer} of job 'sales', found 2"):
            job.as_of(pointer=pointer)
    with pytest.raises(InvalidConfigurationError, match="a path or a URI"):
        job.as_of(pointer="")


def test_checkpoint_is_left_out_as_of_a_time_after_its_operator_began_anew(job: Job) -> None:
    abandoned = job.add_operator().checkpoint_id
    job.clock.advance(3600)
    cleared = make_registration(uid="totals", owner=make_owner(clear_marker="cleared"), on_clear=OnClear.RESTART)
    attempt = job.coordinator.register(cleared).attempt
    began = job.coordinator.describe(job_id_of("sales")).read_at

    assert job.as_of(at=began) == [4]
    assert job.as_of(at=began - timedelta(seconds=1)) == [4, abandoned]
    assert job.as_of(checkpoint_id=abandoned) == [abandoned]

    job.clock.advance(3600)
    restarted = present(complete_checkpoint(job.coordinator, attempt).checkpoint)
    assert job.as_of(at=restarted.completed_at) == [4, restarted.checkpoint_id]


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
        ("run:2026-01-04T00:00:00Z", 4),
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
    restored = present(fork.restore())
    assert restored.document.job_name == "sales"
    assert restored.document.checkpoint_id == 2
    week.take(fork)
    fork.finish(AttemptStatus.FAILED)
    # The job has gone on meanwhile, and what the fork began at is gone.
    source = RestoreSource(pointer="gone", metadata_uri="", metadata_size=0, metadata_sha256="", problem="gone")
    retry = week.attempt(name, owner=day(3), restore_from=source)
    again = present(retry.restore())
    assert again.document.job_name == name
    after = week.coordinator.describe(job_id_of("sales"))
    assert (after.operators, after.attempts, after.checkpoints) == (
        before.operators,
        before.attempts,
        before.checkpoints,
    )
