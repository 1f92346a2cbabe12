"""Which run of a job came before which."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.checkpoint.run_order import is_earlier


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
