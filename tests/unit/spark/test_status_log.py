"""Log lines of an attempt, and the figures of its steps."""

from __future__ import annotations

import logging
import tracemalloc
from datetime import UTC, datetime

import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary, StepSummary
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent
from airflow_provider_statecheck.spark.status_log import SmoothedRate, StageProgress, StepFigures, readable_seconds
from airflow_provider_statecheck.state.progress import Iterations, LoopProgress, NamedSnapshot, Scope, StepKey
from airflow_provider_statecheck.storage.metadata_file import SnapshotHandle
from tests.messages import make_registration, present
from tests.unit.spark.conftest import Clock
from tests.unit.written_stage import WrittenStage

GIB = 1 << 30


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


@pytest.fixture(autouse=True)
def _all_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_a_line_has_percent_rows_rate_and_the_time_to_go(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    progress = StageProgress("balances", 10 * GIB, monotonic=clock)
    clock.seconds += 20
    progress.advance(2 * GIB, 5_000_000)
    assert said(caplog) == ["Stage balances: 20 %, 5,000,000 rows, 250,000 rows/s, about 80 s left"]


def test_after_a_restore_it_says_what_was_kept_and_counts_it_for_the_part_but_not_for_the_rate(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    progress = StageProgress("balances", 1000, restored=610, monotonic=clock)
    clock.seconds += 10
    progress.advance(90, 400)
    assert said(caplog) == [
        "Stage balances resumes: 61 % restored",
        "Stage balances: 70 %, 400 rows, 40 rows/s, 61 % restored, about 33 s left",
    ]


def test_lines_come_no_sooner_than_every_few_seconds(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    progress = StageProgress("balances", 1000, monotonic=clock)
    for _ in range(100):
        clock.seconds += 1
        progress.advance(1, 1)
    assert len(said(caplog)) == 10


def test_a_hundred_percent_is_said_at_the_end_only(clock: Clock) -> None:
    progress = StageProgress("balances", 1000, monotonic=clock)
    progress.advance(999, 1)
    assert progress.percent == 99
    progress.advance(1, 1)
    assert progress.percent == 100


def test_an_input_of_unknown_size_has_neither_percent_nor_end(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    progress = StageProgress("balances", None, restored=3, monotonic=clock)
    clock.seconds += 10
    progress.advance(1, 10)
    assert (progress.percent, progress.seconds_left) == (None, None)
    assert said(caplog) == [
        "Stage balances resumes: earlier progress restored",
        "Stage balances: 10 rows, 1 rows/s, earlier progress restored",
    ]


@pytest.mark.parametrize(
    ("promised", "read", "total", "percent", "seconds_left"),
    [
        pytest.param(0, 0, None, 100, None, id="an input without bytes is done"),
        pytest.param(100, 50, 200, 25, 30.0, id="an input that grows has a new total"),
        pytest.param(100, 150, None, 100, 0.0, id="more than was promised is no more than all"),
    ],
)
def test_the_part_that_is_read_follows_the_size_of_the_input(
    clock: Clock, promised: int, read: int, total: int | None, percent: int, seconds_left: float | None
) -> None:
    progress = StageProgress("balances", promised, monotonic=clock)
    clock.seconds += 10
    progress.advance(read, 1, total=total)
    assert progress.percent == percent
    assert progress.seconds_left == pytest.approx(seconds_left)


def test_nobody_can_tell_the_end_before_any_time_has_passed(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    progress = StageProgress("balances", 100, monotonic=clock)
    progress.advance(0, 0)
    assert progress.seconds_left is None
    assert said(caplog) == ["Stage balances: 0 %, 0 rows, 0 rows/s"]


@pytest.mark.parametrize(("restored", "tail"), [(0, ""), (610, ", 61 % restored")])
def test_the_last_line_says_what_this_try_has_done(
    clock: Clock, caplog: pytest.LogCaptureFixture, restored: int, tail: str
) -> None:
    progress = StageProgress("balances", 1000, restored=restored, monotonic=clock)
    clock.seconds += 20
    progress.advance(1000 - restored, 5000)
    progress.finished()
    assert said(caplog)[-1] == f"Stage balances finished: 5,000 rows in 20 s, 250 rows/s{tail}"


def test_a_stage_without_anything_to_do_is_done_in_no_time(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    StageProgress("balances", 0, monotonic=clock).finished()
    assert said(caplog) == ["Stage balances finished: 0 rows in 0.0 s, 0 rows/s"]


def test_the_rate_follows_a_change_and_evens_out_a_single_slow_step() -> None:
    rate = SmoothedRate(60)
    for _ in range(100):
        rate.observe(10, 1)
    assert rate.per_second == pytest.approx(10)
    rate.observe(0, 5)
    assert 9 < rate.per_second < 10
    for _ in range(300):
        rate.observe(50, 1)
    assert rate.per_second == pytest.approx(50, rel=0.02)


@given(st.lists(st.tuples(st.integers(0, 1000), st.floats(0.01, 1000.0)), min_size=1))
def test_the_rate_lies_between_the_slowest_and_the_fastest_seen(steps: list[tuple[int, float]]) -> None:
    rate = SmoothedRate(60)
    for amount, seconds in steps:
        rate.observe(amount, seconds)
    rates = [amount / seconds for amount, seconds in steps]
    assert min(rates) * 0.999 <= rate.per_second <= max(rates) * 1.001


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0.0 s"),
        (1.24, "1.2 s"),
        (9.96, "10 s"),
        (119.4, "119 s"),
        (120, "2 min"),
        (240, "4 min"),
        (119 * 60, "119 min"),
        (120 * 60, "2 h"),
        (31 * 3600, "31 h"),
        (72 * 3600, "3 d"),
    ],
)
def test_a_duration_is_said_in_its_fitting_unit(seconds: float, shown: str) -> None:
    assert readable_seconds(seconds) == shown


DAYS: StepKey = ((), "days")


def handle(name: str, seconds: float = 60.0, scope: Scope = ()) -> SnapshotHandle:
    return SnapshotHandle(
        name=name,
        scope=scope,
        uri=f"memory://{name}",
        manifest_size=1,
        manifest_sha256="",
        size_bytes=9,
        rows=3,
        files=1,
        fingerprint="f",
        epoch=1,
        seconds=seconds,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def figures(
    progress: LoopProgress | None = None, iterations: Iterations | None = None, clock: Clock | None = None
) -> StepFigures:
    return StepFigures(progress or LoopProgress(), iterations or Iterations(), clock or Clock(0.0))


def test_a_restored_iteration_that_goes_on_is_computed_but_has_saved_its_time() -> None:
    found = figures()
    found.restored(NamedSnapshot((handle("ranks", 100.0),)))
    found.computed(NamedSnapshot((handle("ranks", 150.0),)))
    summary = found.of_checkpoint([handle("ranks")], 0.0)
    assert summary.steps == (StepSummary(name="ranks", outcome="computed", seconds=150.0, size_bytes=9, rows=3),)
    assert summary.seconds_saved == 100.0
    restored = present(found.of_restore())
    assert [(step.name, step.seconds_saved) for step in restored.steps] == [("ranks", 100.0)]


def test_ten_thousand_steps_cost_no_more_than_some_hundred_and_none_is_lost_in_the_sums() -> None:
    found = figures()
    tracemalloc.start()
    for i in range(10_000):
        found.restored(NamedSnapshot((handle("rows", 1.0, scope=(("days", str(i)),)),)))
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    for summary in (found.of_checkpoint([], 0.0), found.of_restore()):
        assert summary is not None
        assert summary.steps[-1].name == "days[9999]/rows"
        assert len(summary.steps) + summary.left_out["steps"] == 10_000
        assert summary.seconds_saved == 10_000.0
    assert kept_bytes < 400_000


def test_a_finished_item_takes_the_loops_inside_it_along() -> None:
    progress, iterations = LoopProgress(), Iterations()
    progress.expect(((("days", "4"),), "hours"), ["0", "1"])
    iterations.expect(((("days", "4"),), "ranks"), 3)
    for loops in (progress, iterations):
        loops.drop_scope((("days", "4"),))
    assert (progress.counts, iterations.counts) == ({}, {})


def test_restored_steps_are_reported_once_and_not_at_every_step(clock: Clock) -> None:
    found = figures(clock=clock)
    assert not found.is_due(), "nothing was restored"
    found.restored(NamedSnapshot((handle("a"),)))
    assert found.is_due()
    assert not found.is_due()
    found.restored(NamedSnapshot((handle("b"),)))
    clock.seconds = 1.0
    assert not found.is_due(), "the next report follows after some seconds"
    clock.seconds = 6.0
    assert found.is_due()


def test_restored_loops_are_reported_even_without_a_restored_step() -> None:
    assert figures(LoopProgress([[[], "days", ["1"]]])).is_due()


def test_an_attempt_that_restored_nothing_reports_nothing() -> None:
    found = figures()
    found.computed(NamedSnapshot((handle("a"),)))
    assert found.of_restore() is None


# In the rows


RESTORED = CheckpointSummary(steps=(StepSummary(name="a", outcome="restored", seconds=7.0),), seconds_saved=7.0)


def test_a_report_after_the_restored_checkpoint_is_gone_is_dropped_and_the_end_repeats_it(stage: WrittenStage) -> None:
    stage.run(checkpoints=1)
    attempt = stage.attempt()
    attempt.restore()
    for name in ("b", "c"):
        stage.take(attempt, stage.snapshot(attempt, name))
    attempt.report_restored(RESTORED)
    job_id = attempt.grant.attempt.job_id
    assert stage.coordinator.describe(job_id).attempts[-1].restored_summary is None
    attempt.finish(AttemptStatus.FAILED)
    assert stage.coordinator.describe(job_id).attempts[-1].restored_summary == RESTORED


def test_the_row_of_a_checkpoint_has_the_time_to_write_its_metadata(stage: WrittenStage) -> None:
    ticks = iter(range(1000))
    registration = make_registration(storage_base=stage.storage.base_uri)
    attempt = StageAttempt(stage.coordinator, stage.storage, registration, monotonic=lambda: float(next(ticks)))
    snapshot = stage.snapshot(attempt, "a")
    taken = attempt.take_checkpoint(CheckpointContent(snapshots=(snapshot,), summary=CheckpointSummary()))
    assert present(taken).summary == CheckpointSummary(write_seconds=1.0)
