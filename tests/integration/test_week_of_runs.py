"""A week of daily runs on one job, with two failures, a day that is run again, and a change of the state's type."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_statecheck.checkpoint.fencing import UnknownLiveness
from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.records import SystemClock
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import RunSupersededError
from airflow_provider_statecheck.gateway.in_process import open_gateway
from airflow_provider_statecheck.maintenance.rewind import JobRewinding, RewindJob
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.unit_of_work import open_engine
from airflow_provider_statecheck.spark.sinks.parquet_sink import ParquetSink
from airflow_provider_statecheck.spark.sources.file_source import ParquetSource
from airflow_provider_statecheck.spark.stages.stage import Stage
from airflow_provider_statecheck.spark.stages.stage_run import StageResult, run_stage
from airflow_provider_statecheck.state.descriptors import ValueStateDescriptor
from airflow_provider_statecheck.state.keys.key_serializer import KeyField
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.integration.week_functions import Account, AccountWithLimit, Balances
from tests.shared_spark import shared_session
from tests.state_content import Content, StateContent

JOB, UID = "balances", "stage"
FILES, PAYMENTS, CHANGE, LAST = 2, 30, 5, 7
OUTPUT = "account string, number bigint, balance bigint"
Rows = list[tuple[str, int, int]]

pytestmark = [pytest.mark.spark, pytest.mark.soak]


def date(day: int) -> str:
    return f"2026-01-{day:02d}"


class Week:
    """The files that arrive, the runs over them, and what they give."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.input = folder / "input"
        self.metadata = f"sqlite:///{folder}/state.db"

    def arrive(self, day: int, *, wrong: bool = False) -> None:
        """Write the files of a day, or write them again; wrong ones have other amounts."""
        self.input.mkdir(exist_ok=True)
        dice = random.Random(100 * day + wrong)
        for part in range(FILES):
            first = (FILES * (day - 1) + part) * PAYMENTS
            numbers = range(first, first + PAYMENTS)
            columns = {
                "account": [f"a{number % 9}" for number in numbers],
                "number": list(numbers),
                "amount": [dice.randrange(-50, 50) for _ in numbers],
            }
            pq.write_table(pa.table(columns), self.input / f"{date(day)}-{part}.parquet")

    def forget(self, *days: int) -> None:
        """Remove the files of days."""
        for day in days:
            for file in self.input.glob(f"{date(day)}*"):
                file.unlink()

    def rewind(self, day: int) -> None:
        """Take the runs since a day back."""
        engine = open_engine(self.metadata)
        try:
            rewinding = JobRewinding(SqlJobStore(engine, SystemClock()), UnknownLiveness())
            rewinding.rewind(RewindJob(job_id=job_id_of(JOB), run_key=date(day)))
        finally:
            engine.dispose()

    def run(self, day: int, output: str = "output", *, fails_at: int | None = None, **options: Any) -> StageResult:
        """Begin a try of a day's run."""
        record = Account if day < CHANGE and "fork" not in options else AccountWithLimit
        failing = None if fails_at is None else (fails_at, self.folder / f"failed-{fails_at}")
        named: dict[str, Any] = {"job": JOB, "run": date(day), "retained_runs": 6} | options
        return run_stage(
            shared_session(),
            self.stage(Balances(record, failing), output),
            **named,
            checkpoint_dir=str(self.folder / "checkpoints"),
            metadata=self.metadata,
        )

    def run_and_fail(self, day: int, fails_at: int, **options: Any) -> None:
        """Begin a try that fails at a payment."""
        with pytest.raises(Exception, match="planned"):
            self.run(day, fails_at=fails_at, **options)

    def stage(self, function: Balances, output: str) -> Stage:
        """Return the stage."""
        stage = Stage(UID, parallelism=2, max_parallelism=16)
        source = ParquetSource(str(self.input), files_per_increment=1)
        keyed = stage.source(source).key_by("account", order_by="number")
        return keyed.process(function, uid="balance", output=OUTPUT).sink(ParquetSink(str(self.folder / output)))

    def rows(self, output: str = "output") -> Rows:
        """Return what a reader of an output sees."""
        files = sorted((self.folder / output).rglob("part-*.parquet"))
        return sorted(tuple(row.values()) for file in files for row in pq.read_table(file).to_pylist())

    def state(self, job: str = JOB) -> Content:
        """Return the state of each account as it is now."""
        checkpoint = open_gateway(self.metadata).latest(job_id_of(job), operator_id_of(UID))
        assert checkpoint is not None
        storage = CheckpointStorage.open(f"file://{self.folder}/checkpoints")
        content = StateContent(storage=storage, checkpoint=checkpoint)
        return content.read("stage/balance", KeyField("account", pa.string()), 3, _accounts)

    def view(self) -> JobView:
        """Return what is kept of the job."""
        return open_gateway(self.metadata).describe(job_id_of(JOB))

    def expected(self, first_day: int = 1) -> Rows:
        """Return the balance after each payment of the days from one on, worked out without Spark."""
        balances: defaultdict[str, int] = defaultdict(int)
        rows = []
        for file in sorted(self.input.iterdir()):
            for row in pq.read_table(file).to_pylist():
                balances[row["account"]] += row["amount"]
                rows.append((row["account"], row["number"], balances[row["account"]]))
        return sorted(row for row in rows if row[1] >= (first_day - 1) * FILES * PAYMENTS)


def _accounts(backend: Any) -> Content:
    account = backend.get_partitioned_state(ValueStateDescriptor("account", AccountWithLimit))
    content = {}
    for key in [*backend.get_keys("account")]:
        backend.set_current_key(key)
        content[key] = asdict(account.value())
    return content


def first_of(day: int, file: int) -> int:
    """Return the number of the first payment in a file of a day."""
    return (FILES * (day - 1) + file) * PAYMENTS


def run_days(week: Week, *days: int) -> None:
    for day in days:
        week.arrive(day)
        assert week.run(day).increments == FILES


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Week:
    """Return the week as it was lived."""
    week = Week(tmp_path_factory.mktemp("week"))
    run_days(week, 1)
    week.arrive(2)
    week.run_and_fail(2, first_of(2, 1) + 4)
    assert week.run(2).increments == 1, "the retry goes on behind the first file of its own day"
    week.arrive(3, wrong=True)
    week.run(3)
    wrong = week.rows()
    week.arrive(3)
    assert week.run(3).increments == FILES, "the day begins again at the end of the day before"
    assert len(week.rows()) == len(wrong)
    assert week.rows() != wrong
    week.arrive(4)
    week.run_and_fail(4, first_of(4, 0) + 4)
    assert week.run(4).increments == FILES
    run_days(week, *range(CHANGE, LAST + 1))
    return week


@pytest.fixture(scope="module")
def at_once(lived: Week) -> Week:
    """Return the same with all days in one run."""
    lived.run(LAST, "at-once", job="at once", run="once")
    return lived


def test_the_output_of_the_week_equals_that_of_one_run_over_all_days(at_once: Week) -> None:
    assert at_once.rows() == at_once.rows("at-once") == at_once.expected()


def test_the_state_after_the_week_equals_that_after_one_run_over_all_days(at_once: Week) -> None:
    assert at_once.state() == at_once.state("at once")
    assert {account["limit"] for account in at_once.state().values()} == {100}


def test_all_runs_of_the_week_were_of_one_generation(lived: Week) -> None:
    assert {attempt.generation for attempt in lived.view().attempts} == {1}
    assert lived.view().operators[0].first_run == date(1)


@pytest.fixture
def two_days(tmp_path: Path) -> Week:
    """Return a job after its second day."""
    week = Week(tmp_path)
    run_days(week, 1, 2)
    return week


def test_a_day_that_is_run_again_without_its_input_takes_its_output_back(two_days: Week) -> None:
    two_days.forget(2)
    assert two_days.run(2).increments == 0
    assert two_days.rows() == two_days.expected()
    run_days(two_days, 3)
    assert two_days.rows() == two_days.expected()


def test_until_a_day_that_is_run_again_commits_its_old_output_is_seen_whatever_fails(two_days: Week) -> None:
    rows = two_days.rows()
    two_days.run_and_fail(2, first_of(2, 0) + 4)
    assert two_days.rows() == rows
    assert two_days.run(2).increments == FILES
    assert two_days.rows() == rows


def test_days_that_are_taken_back_together_work_again_in_their_order(two_days: Week) -> None:
    for day in (3, 4):
        two_days.arrive(day, wrong=True)
        two_days.run(day)
    wrong = two_days.rows()
    two_days.rewind(3)
    assert two_days.rows() == wrong, "nothing is seen before it is replaced"
    two_days.forget(3, 4)
    run_days(two_days, 3, 4)
    assert two_days.rows() == two_days.expected()
    assert {attempt.generation for attempt in two_days.view().attempts} == {1}


def test_a_day_that_is_run_again_later_is_refused_and_changes_nothing(lived: Week) -> None:
    rows, view = lived.rows(), lived.view()
    with pytest.raises(RunSupersededError, match=date(LAST)):
        lived.run(3)
    now = lived.view()
    assert (now.operators, now.attempts, now.checkpoints) == (view.operators, view.attempts, view.checkpoints)
    assert lived.rows() == rows


def test_a_fork_works_on_a_copy_through_its_failures_and_leaves_the_job_alone(lived: Week) -> None:
    rows, state, checkpoints = lived.rows(), lived.state(), lived.view().checkpoints
    fork: dict[str, Any] = {"from_checkpoint": f"before:{date(3)}", "fork": "again", "output": "forked"}
    lived.run_and_fail(3, first_of(5, 0) + 4, **fork)
    days_before_failure = 2
    assert lived.run(3, **fork).increments == (LAST - 2 - days_before_failure) * FILES
    assert lived.rows("forked") == lived.expected(first_day=3)
    assert lived.state("balances@again") == state
    assert (lived.rows(), lived.state(), lived.view().checkpoints) == (rows, state, checkpoints)
