"""Figures of a checkpoint are small whatever the user's names are, and come back from a row as they were."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from airflow_provider_statecheck.checkpoint import checkpoint_summary
from airflow_provider_statecheck.checkpoint.checkpoint_summary import (
    MAX_SUMMARY_BYTES,
    CheckpointSummary,
    LoopSummary,
    SourceSummary,
    StateSummary,
    StepSummary,
)
from airflow_provider_statecheck.checkpoint.codec import encode

TEXTS = st.text(max_size=200) | st.sampled_from(["\0" * 3000, "\ud800" * 3000, "🜁" * 3000, '"' * 3000])
NUMBERS = st.integers() | st.just(10**400)
SECONDS = st.floats()


def _lists(entries: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    # Repeated, because drawing thousands of distinct entries is slow.
    return st.builds(lambda some, times: tuple(some * times), st.lists(entries, max_size=4), st.integers(0, 3000))


SUMMARIES = st.builds(
    CheckpointSummary,
    steps=_lists(
        st.builds(StepSummary, name=TEXTS, outcome=TEXTS, seconds=SECONDS, size_bytes=NUMBERS, rows=st.none() | NUMBERS)
    ),
    loops=_lists(st.builds(LoopSummary, name=TEXTS, finished=NUMBERS, total=st.none() | NUMBERS)),
    sources=_lists(
        st.builds(SourceSummary, uid=TEXTS, finished_splits=NUMBERS, total_splits=NUMBERS, remaining_seconds=SECONDS)
    ),
    states=_lists(
        st.builds(
            StateSummary, uid=TEXTS, name=TEXTS, kind=TEXTS, type=TEXTS, keys=st.none() | NUMBERS, size_bytes=NUMBERS
        )
    ),
    open_commits=_lists(TEXTS),
    left_out=st.dictionaries(TEXTS | st.sampled_from(["steps", "states"]), NUMBERS, max_size=50),
    seconds_saved=SECONDS,
    snapshot_seconds=SECONDS,
    write_seconds=SECONDS,
    commit_seconds=st.none() | SECONDS,
)


@given(SUMMARIES)
@settings(max_examples=50, deadline=None, database=None)
def test_a_summary_is_small_and_a_database_can_store_it_whatever_the_user_does(summary: CheckpointSummary) -> None:
    content = json.dumps(encode(summary), allow_nan=False)
    assert len(content) <= MAX_SUMMARY_BYTES <= 64 * 1024
    assert "\\u0000" not in content
    assert content.encode()
    assert CheckpointSummary.of(json.loads(content)) == summary


def _steps(count: int) -> tuple[StepSummary, ...]:
    return tuple(StepSummary(name=f"step {i}", outcome="restored", seconds=float(i)) for i in range(count))


def test_the_newest_steps_are_kept_and_the_others_counted() -> None:
    summary = CheckpointSummary(steps=_steps(1000), seconds_saved=499_500.0)
    kept = len(summary.steps)
    assert 50 < kept < 1000
    assert summary.steps == _steps(1000)[-kept:]
    assert summary.left_out == {"steps": 1000 - kept}
    assert summary.seconds_saved == 499_500.0, "the sum covers the entries that were left out"


def test_a_short_list_is_complete() -> None:
    summary = CheckpointSummary(steps=_steps(20), open_commits=("checkpoint 3: 2 committables",))
    assert summary.steps == _steps(20)
    assert summary.left_out == {}


def test_the_outermost_loops_come_first_and_are_kept() -> None:
    loops = tuple(LoopSummary(name=f"days[{i}]/hours", finished=i, total=24) for i in range(500))
    kept = CheckpointSummary(loops=loops).loops
    assert kept == loops[: len(kept)]
    assert len(kept) < 500


def test_only_a_restored_step_has_saved_time() -> None:
    outcomes = ("computed", "restored", "skipped", "held")
    steps = [StepSummary(name="a", outcome=outcome, seconds=7.0) for outcome in outcomes]
    assert [step.seconds_saved for step in steps] == [0.0, 7.0, 0.0, 0.0]


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, -1.0])
def test_a_duration_that_cannot_be_is_shown_as_none_at_all(seconds: float) -> None:
    assert CheckpointSummary(snapshot_seconds=seconds).snapshot_seconds == 0.0


def test_the_rows_of_a_view_are_read_without_measuring_their_texts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = CheckpointSummary(steps=_steps(1000), left_out={"loops": 3}, commit_seconds=2.5)
    content = json.loads(json.dumps(encode(summary)))
    monkeypatch.setattr(checkpoint_summary, "json_size", lambda value: pytest.fail(f"measured {value!r}"))
    monkeypatch.setattr(checkpoint_summary, "truncated", lambda text, _: pytest.fail(f"measured {text!r}"))
    assert CheckpointSummary.of(content) == summary


@pytest.mark.parametrize("content", [7, "text", [], {"steps": 7}, {"steps": [7]}, {"steps": [{}]}, {"left_out": 7}])
def test_figures_that_cannot_be_read_are_none(content: Any) -> None:
    assert CheckpointSummary.of(content) is None


def test_what_a_newer_version_adds_is_ignored() -> None:
    summary = CheckpointSummary(steps=_steps(1))
    content = encode(summary)
    content["steps"][0]["added_later"] = content["added_later"] = [1]
    assert CheckpointSummary.of(content) == summary


def test_what_an_older_version_did_not_write_has_its_default() -> None:
    assert CheckpointSummary.of({}) == CheckpointSummary()
    step = {each.name: "a" for each in fields(StepSummary)[:2]}
    assert CheckpointSummary.of({"steps": [step]}) == CheckpointSummary(steps=(StepSummary(name="a", outcome="a"),))


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (StepSummary(name="raw", outcome="computed"), ""),
        (StepSummary(name="raw", outcome="computed", parts=1, share=0.029), "1 part, 2 %"),
        (StepSummary(name="raw", outcome="held", parts=7, share=None), "7 parts"),
        (StepSummary(name="raw", outcome="computed", parts=7, share=0.999), "7 parts, 99 %"),
        (StepSummary(name="raw", outcome="restored", parts=7), "7 parts"),
        (StepSummary(name="raw", outcome="computed", parts=6, share=0.9, bad_parts=2), "6 parts, 90 %, 2 failed"),
    ],
)
def test_the_progress_of_a_step_in_parts_is_never_rounded_up(step: StepSummary, text: str) -> None:
    assert step.parts_text == text
