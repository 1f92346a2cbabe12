"""Minimum, average, maximum and percentiles."""

from __future__ import annotations

import json
import statistics

import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.checkpoint.codec import decode, encode
from airflow_provider_statecheck.checkpoint.statistics import NEWEST_VALUES, StatsSummary


def summary_of(values: list[int]) -> StatsSummary:
    summary = StatsSummary()
    for value in values:
        summary = summary.added(value)
    return summary


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=50))
def test_minimum_average_and_maximum_are_those_of_all_values(values: list[int]) -> None:
    found = summary_of(values)
    assert (found.count, found.minimum, found.maximum) == (len(values), min(values), max(values))
    assert found.average == pytest.approx(statistics.fmean(values))


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=50), st.floats(0.1, 100))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(values: list[int], percent: float) -> None:
    found = summary_of(values).percentile(percent)
    enough = [v for v in values if sum(w <= v for w in values) >= percent / 100 * len(values) - 1e-9]
    assert found == min(enough)


def test_percentiles_are_those_of_the_newest_values_while_the_extremes_are_of_all() -> None:
    found = summary_of([10**9] + [0] * 10 + list(range(1, NEWEST_VALUES + 1)))
    assert len(found.newest) == NEWEST_VALUES
    assert (found.percentile(50), found.percentile(99), found.percentile(100)) == (100, 198, 200)
    assert (found.minimum, found.maximum, found.count) == (0, 10**9, NEWEST_VALUES + 11)


def test_nothing_has_no_average_and_no_percentile() -> None:
    assert (StatsSummary().average, StatsSummary().percentile(50), StatsSummary().minimum) == (None, None, None)


@given(st.lists(st.integers(0, 2**62), max_size=20))
def test_a_summary_survives_json(values: list[int]) -> None:
    found = summary_of(values)
    assert decode(StatsSummary, json.loads(json.dumps(encode(found)))) == found
