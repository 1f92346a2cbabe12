"""Which runs are merged while a snapshot is written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given, strategies as st

from airflow_provider_statecheck.state.arrow.state_runs import runs_to_merge


def _run(raw_bytes: int, deletions: int = 0) -> Any:
    """Return the sizes of a run with rows of one byte."""
    return SimpleNamespace(raw_bytes=raw_bytes, deletions=deletions, num_rows=raw_bytes)


def _after(runs: list[Any], new: int, deletions: int = 0) -> tuple[list[Any], int]:
    count = runs_to_merge(new, deletions, runs)
    merged = new + sum(run.raw_bytes for run in runs[:count])
    left = 0 if count == len(runs) else deletions + sum(run.deletions for run in runs[:count])
    return [_run(merged, left), *runs[count:]], merged


def test_much_smaller_change_is_a_run_of_its_own() -> None:
    assert runs_to_merge(10, 0, [_run(100), _run(1000)]) == 0


def test_change_as_large_as_the_newest_runs_is_merged_with_them() -> None:
    assert runs_to_merge(10, 0, [_run(10), _run(20), _run(1000)]) == 2


@given(st.lists(st.integers(1, 50), min_size=100, max_size=300))
def test_runs_stay_few_and_none_is_merged_often(changes: list[int]) -> None:
    runs, written = [_run(5000)], 0
    for change in changes:
        runs, merged = _after(runs, change)
        written += merged
        assert len(runs) <= 24
        assert sum(run.raw_bytes for run in runs[:-1]) <= runs[-1].raw_bytes
    assert written <= 10 * sum(changes)


def test_hundred_equal_changes_are_written_less_than_four_times() -> None:
    runs, written = [_run(10_000)], 0
    for _ in range(100):
        runs, merged = _after(runs, 100)
        written += merged
        assert len(runs) <= 8
    assert written <= 4 * 100 * 100


def test_all_runs_are_merged_when_most_of_the_oldest_is_gone() -> None:
    assert runs_to_merge(60, 60, [_run(100)]) == 1
    assert runs_to_merge(10, 0, [_run(50, deletions=50), _run(100)]) == 2


def test_first_change_has_nothing_to_merge_with() -> None:
    assert runs_to_merge(10, 10, []) == 0
