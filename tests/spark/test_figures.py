"""What pages show of a stage: its steps and loops in the rows of its checkpoints, and what a retry restored."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary, LoopSummary
from airflow_provider_statecheck.checkpoint.records import AttemptRecord
from airflow_provider_statecheck.spark.status_log import StepFigures
from tests.spark.tries import Tries


def newest(tries: Tries) -> CheckpointSummary:
    summary = tries.view().checkpoints[-1].summary
    assert summary is not None
    return summary


def newest_attempt(tries: Tries) -> AttemptRecord:
    return tries.view().attempts[-1]


def outcomes(summary: CheckpointSummary | None) -> list[tuple[str, str]]:
    assert summary is not None
    return [(step.name, step.outcome) for step in summary.steps]


def test_a_checkpoint_shows_its_steps_and_a_retry_those_that_it_restored(tries: Tries) -> None:
    with tries.failing() as checkpoint:
        tries.monotonic.seconds = 0.0
        checkpoint.snapshot("clicks", lambda: tries.spark.range(5))
        checkpoint.snapshot("sessions", lambda: tries.spark.range(7))
    first = newest(tries)
    assert outcomes(first) == [("clicks", "computed"), ("sessions", "computed")]
    assert [(step.rows, step.size_bytes > 0) for step in first.steps] == [(5, True), (7, True)]
    with tries.failing() as checkpoint:
        checkpoint.snapshot("clicks", lambda: tries.spark.range(5))
        checkpoint.snapshot("new", lambda: tries.spark.range(1))
    assert outcomes(newest(tries)) == [("sessions", "held"), ("clicks", "restored"), ("new", "computed")]
    assert outcomes(newest_attempt(tries).restored_summary) == [("clicks", "restored")]


def test_a_retry_that_takes_no_checkpoint_tells_what_it_restored_and_what_that_saved(tries: Tries) -> None:
    def slow_rows():
        tries.monotonic.seconds += 90.0
        return tries.spark.range(5)

    with tries.failing() as checkpoint:
        checkpoint.snapshot("rows", slow_rows)
    seen: list[AttemptRecord] = []

    def fails():
        seen.append(newest_attempt(tries))
        raise ValueError("the try dies here")

    def dying_try():
        with tries.open() as checkpoint:
            checkpoint.snapshot("rows", slow_rows)
            checkpoint.snapshot("next", fails)

    with pytest.raises(ValueError, match="dies here"):
        dying_try()
    (during,) = seen
    assert during.ended_at is None
    for row in (during, newest_attempt(tries)):
        assert outcomes(row.restored_summary) == [("rows", "restored")]
        assert row.restored_summary is not None
        assert row.restored_summary.seconds_saved == 90.0
    assert len([c for c in tries.view().checkpoints if c.epoch == 2]) == 0


def test_steps_without_a_snapshot_and_loops_are_shown(tries: Tries) -> None:
    with tries.failing() as checkpoint:
        checkpoint.snapshot("cheap", lambda: tries.spark.range(1), when=False)
        for day in checkpoint.each("days", [1, 2, 3]):
            checkpoint.snapshot("rows", lambda: tries.spark.range(2))
            if day == 2:
                checkpoint.iterate("ranks", lambda: tries.spark.range(2), 4, 2, step=lambda frame, _: frame)
                break
    summary = newest(tries)
    assert outcomes(summary) == [
        ("cheap", "skipped"),
        ("days[1]/rows", "computed"),
        ("days[2]/rows", "computed"),
        ("days[2]/ranks", "computed"),
    ]
    assert summary.loops == (
        LoopSummary(name="days", finished=1, total=3),
        LoopSummary(name="days[2]/ranks", finished=4, total=4, is_iteration=True),
    )
    assert summary.snapshot_seconds >= 0.0


def test_a_retry_tells_the_time_of_the_loop_items_that_it_does_not_repeat(tries: Tries) -> None:
    with tries.failing() as checkpoint:
        for day in checkpoint.each("days", [1, 2, 3]):
            if day == 3:
                break
            tries.monotonic.seconds += 60.0
    assert [loop.seconds for loop in newest(tries).loops] == [120.0]
    with tries.open() as checkpoint:
        for _ in checkpoint.each("days", [1, 2, 3]):
            tries.monotonic.seconds += 10.0
    restored = newest_attempt(tries).restored_summary
    assert restored is not None
    assert restored.seconds_saved == 120.0
    assert [(loop.finished, loop.seconds) for loop in (*restored.loops, *newest(tries).loops)] == [
        (2, 120.0),
        (3, 130.0),
    ]


def test_figures_that_cannot_be_computed_fail_no_checkpoint(tries: Tries, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> CheckpointSummary:
        raise RuntimeError("no figures")

    monkeypatch.setattr(StepFigures, "of_checkpoint", broken)
    monkeypatch.setattr(StepFigures, "of_restore", broken)
    with tries.failing() as checkpoint:
        checkpoint.snapshot("rows", tries.builder("rows"))
    with tries.open() as checkpoint:
        checkpoint.snapshot("rows", tries.builder("rows"))
    assert tries.take_computed() == ["rows"]
    assert tries.view().checkpoints[-1].summary is None
