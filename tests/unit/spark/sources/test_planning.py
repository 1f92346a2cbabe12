"""How items are cut into increments."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.sources.enumerator import Limits, Piece, plan
from airflow_provider_statecheck.state.source_items import Intervals, Item, Ledger, Partial

FILES = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=6), max_size=8)
LIMITS = st.builds(
    Limits,
    size_bytes=st.none() | st.integers(1, 80),
    items=st.none() | st.integers(1, 4),
    row_groups=st.none() | st.integers(1, 6),
)


def ledger_of(files):
    return Ledger(tuple(Item.of(f"f{i}", sum(groups), "") for i, groups in enumerate(files)))


def planned(files, limits, ledger=None):
    return list(plan(ledger or ledger_of(files), lambda: limits, lambda i: files[i]))


def read(files, pieces):
    return [(p.position, g) for p in pieces for g in range(*(p.groups or (0, len(files[p.position]))))]


@given(FILES, LIMITS)
def test_every_row_group_is_in_exactly_one_increment_and_in_order(files, limits):
    increments = planned(files, limits)

    found = [group for pieces in increments for group in read(files, pieces)]
    assert found == [(i, g) for i, groups in enumerate(files) for g in range(len(groups))]
    assert all(increments)


@given(FILES, LIMITS)
def test_an_increment_of_several_pieces_keeps_all_limits(files, limits):
    for pieces in planned(files, limits):
        groups = read(files, pieces)
        if len(groups) > 1 and len({position for position, _ in groups}) > 1:
            assert sum(p.size_bytes for p in pieces) <= (limits.size_bytes or 10**9)
            assert len({p.position for p in pieces}) <= (limits.items or 10**9)


@given(FILES, st.integers(1, 6))
def test_no_increment_has_more_row_groups_than_the_limit(files, most):
    assert all(len(read(files, pieces)) <= most for pieces in planned(files, Limits(row_groups=most)))


@given(FILES, LIMITS)
def test_the_sizes_of_pieces_are_those_of_what_they_read(files, limits):
    for pieces in planned(files, limits):
        assert sum(p.size_bytes for p in pieces) == sum(files[i][g] for i, g in read(files, pieces))


def test_a_file_of_up_to_two_increments_is_read_whole():
    assert planned([[10, 10]], Limits(size_bytes=10)) == [(Piece(0, 20),)]


def test_a_larger_file_is_cut_at_its_row_groups():
    assert planned([[10, 10, 5]], Limits(size_bytes=12)) == [
        (Piece(0, 10, (0, 1), 3),),
        (Piece(0, 10, (1, 2), 3),),
        (Piece(0, 5, (2, 3), 3),),
    ]


def test_row_groups_that_are_the_whole_file_are_a_whole_file():
    assert planned([[1, 1], [1, 1]], Limits(row_groups=2)) == [(Piece(0, 2),), (Piece(1, 2),)]


def test_a_file_that_cannot_be_cut_is_an_increment_of_its_own():
    ledger = ledger_of([[1], [50, 50], [1]])

    found = list(plan(ledger, lambda: Limits(size_bytes=10), lambda _: None))

    assert found == [(Piece(0, 1),), (Piece(1, 100),), (Piece(2, 1),)]


def test_footers_of_small_files_are_not_read():
    def refuse(position):
        raise AssertionError(position)

    assert len(list(plan(ledger_of([[5], [5], [5]]), lambda: Limits(size_bytes=10), refuse))) == 2


def test_the_rest_of_a_file_that_cannot_be_cut_any_more_is_refused():
    ledger = Ledger(ledger_of([[1, 1]]).items, partial={0: Partial(Intervals.of([0]), 1)})

    with pytest.raises(InvalidConfigurationError, match="rest of f0"):
        list(plan(ledger, Limits, lambda _: None))


def test_ten_thousand_small_files_are_planned_without_looking_at_each_many_times():
    files = [[1]] * 10_000
    assert [len(pieces) for pieces in planned(files, Limits(size_bytes=10_000))] == [10_000]
