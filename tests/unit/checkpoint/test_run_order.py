"""Which run of a job came before which."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.checkpoint.fencing import checkpoints_before_run, is_earlier
from tests.unit.checkpoint.completed_rows import completed


@pytest.mark.parametrize(
    ("run", "other"),
    [
        ("2026-01-01", "2026-01-02"),
        ("2026-01-01T00:00:00+00:00", "2026-01-01T00:00:01+00:00"),
        ("2026-01-01T01:00:00+02:00", "2026-01-01T00:00:00+00:00"),
        ("2026-01-01", "2026-01-01T06:00:00+00:00"),
        ("2025-12-31T23:59:59.999999+00:00", "2026-01-01"),
    ],
)
def test_of_two_logical_dates_the_lower_one_is_earlier(run, other):
    assert is_earlier(run, other)
    assert not is_earlier(other, run)


def test_a_date_is_not_earlier_than_itself_however_it_is_written():
    assert not is_earlier("2026-01-01T02:00:00+02:00", "2026-01-01T00:00:00+00:00")


@pytest.mark.parametrize(
    "name", ["", "script", "20260101", "1", "asset_triggered__2026-01-01", "2026-01-01x", "2026-13-01", "2026-W01"]
)
def test_what_is_no_date_is_neither_earlier_nor_later(name):
    assert not is_earlier(name, "2099-01-01")
    assert not is_earlier("1999-01-01", name)


@pytest.mark.parametrize(
    ("taken", "run", "left"),
    [
        ("1 2 2 3", "2", "1"),
        ("1 2 4", "3", "1 2"),
        ("1 2 a", "a", "1 2"),
        ("1 a 3", "3", "1 a"),
        # Nobody knows whether a run without a date came before one that took nothing.
        ("1 a", "2", "1"),
        # What stands behind a later run has that one in its state, whatever its own date is.
        ("2 5 a 3", "4", "2"),
        ("3 4", "2", ""),
        ("a b", "2", ""),
        ("", "2", ""),
    ],
)
def test_what_had_been_taken_when_a_run_began(taken, run, left):
    def named(names):
        return [f"2026-01-0{name}" if name.isdigit() else name for name in names.split()]

    newest_first = [completed(number, run_key=key) for number, key in reversed(list(enumerate(named(taken), 1)))]
    found = checkpoints_before_run(newest_first, named(run)[0])
    assert [c.run_key for c in reversed(found)] == named(left)


def test_a_run_may_be_named_by_its_date_in_another_form():
    taken = [completed(9 - n, run_key=f"2026-01-0{n}T00:00:00+00:00") for n in (4, 3, 3, 2)]
    assert [c.run_key for c in checkpoints_before_run(taken, "2026-01-03")] == ["2026-01-02T00:00:00+00:00"]
