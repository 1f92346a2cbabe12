"""Ranges of keys, and how they are cut."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.exceptions import CorruptStateError, InvalidConfigurationError
from airflow_provider_statecheck.spark.sources.sql_relation import KeyRange, equal_widths, ranges_between

KEYS = st.one_of(
    st.integers(),
    st.text(),
    st.floats(allow_nan=False),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.just(UTC)),
    st.binary(),
)


def at(hour):
    return datetime(2026, 1, 1, hour, tzinfo=UTC)


@given(KEYS, KEYS)
def test_a_range_is_the_same_after_its_name(above, up_to):
    for keys in (KeyRange(above, up_to), KeyRange(None, up_to), KeyRange()):
        found = KeyRange.of_name(keys.name)
        assert found == keys
        assert type(found.up_to) is type(keys.up_to)
        assert "\0" not in keys.name


@pytest.mark.parametrize("name", ["", "nil", "[1]", "7", "[1, 2, 3]"])
def test_a_name_of_another_form_is_refused(name):
    with pytest.raises(CorruptStateError, match="range of keys"):
        KeyRange.of_name(name)


def test_ranges_have_no_gaps_and_the_first_of_a_new_run_begins_behind_the_mark():
    assert ranges_between(None, [3, 5]) == [KeyRange(None, 3), KeyRange(3, 5)]
    assert ranges_between(5, [8]) == [KeyRange(5, 8)]


def test_the_same_key_twice_ends_one_range():
    assert ranges_between(None, ["a", "a", "b"]) == [KeyRange(None, "a"), KeyRange("a", "b")]


@given(st.integers(), st.integers(0, 10**6), st.integers(1, 50))
def test_equal_widths_of_whole_numbers_are_ascending_and_end_with_the_largest(lowest, span, count):
    ends = equal_widths(lowest, lowest + span, count)

    assert ends == sorted(set(ends))
    assert (ends[-1], len(ends) <= count) == (lowest + span, True)
    widths = [high - low for low, high in pairwise(ends)]
    assert all(width <= -(-span // count) for width in widths)


@pytest.mark.parametrize(
    ("lowest", "highest", "ends"),
    [
        (0, 9, [3, 6, 9]),
        (0.0, 3.0, [1.0, 2.0, 3.0]),
        (Decimal(0), Decimal("1.5"), [Decimal("0.5"), Decimal(1), Decimal("1.5")]),
        (date(2026, 1, 1), date(2026, 1, 7), [date(2026, 1, 3), date(2026, 1, 5), date(2026, 1, 7)]),
        (at(0), at(3), [at(1), at(2), at(3)]),
        (5, 5, [5]),
        (1, 2, [1, 2]),
    ],
)
def test_numbers_days_and_times_are_cut_into_equal_widths(lowest, highest, ends):
    assert equal_widths(lowest, highest, 3) == ends


@pytest.mark.parametrize("key", ["a", True, b"a"])
def test_other_keys_have_no_width(key):
    with pytest.raises(InvalidConfigurationError, match="counting rows"):
        equal_widths(key, key, 2)
