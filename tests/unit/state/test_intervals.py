"""Sets of numbers kept as bounds."""

from __future__ import annotations

from hypothesis import given, strategies as st

from airflow_provider_statecheck.state.source_items import Intervals


@given(st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60)))
def test_bounds_hold_what_a_set_would(some, others):
    both = Intervals.of(some).plus(Intervals.of(others).bounds)

    assert list(both) == sorted(some | others)
    assert len(both) == len(some | others)
    assert {number for number in range(70) if number in both} == some | others


def test_neighbours_are_kept_as_one():
    assert Intervals.of([3, 1, 2, 7]).bounds == ((1, 4), (7, 8))


def test_bounds_without_numbers_are_not_kept():
    assert Intervals().plus([(3, 3), (5, 4)]).bounds == ()
