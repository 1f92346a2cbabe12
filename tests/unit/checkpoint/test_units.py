"""Durations and sizes as people write them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_provider_statecheck.checkpoint.units import parse_duration, parse_size
from airflow_provider_statecheck.exceptions import InvalidConfigurationError


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        (30000, timedelta(seconds=30)),
        ("30000", timedelta(seconds=30)),
        (0, timedelta(0)),
        ("-1", timedelta(milliseconds=-1)),
        ("10 min", timedelta(minutes=10)),
        ("10min", timedelta(minutes=10)),
        (" 2 H ", timedelta(hours=2)),
        ("1 day", timedelta(days=1)),
        ("5 s", timedelta(seconds=5)),
        ("250 ms", timedelta(microseconds=250_000)),
        ("7 µs", timedelta(microseconds=7)),
        ("7000 ns", timedelta(microseconds=7)),
        (timedelta(seconds=3), timedelta(seconds=3)),
    ],
)
def test_a_bare_number_is_milliseconds_and_any_other_has_its_unit(text: object, duration: timedelta) -> None:
    assert parse_duration("timeout", text) == duration


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("20 kb", 20480),
        ("20KiB", 20480),
        ("1 m", 1 << 20),
        ("2g", 2 << 30),
        ("3 tb", 3 << 40),
    ],
)
def test_a_bare_number_is_bytes_and_units_are_powers_of_1024(text: object, size: int) -> None:
    assert parse_size("threshold", text) == size


@pytest.mark.parametrize("text", ["", "soon", "5 parsecs", "1.5 s", 2.5, True, None, "s", "5 s 3", "9" * 30])
def test_what_is_no_duration_is_refused_with_key_and_value(text: object) -> None:
    with pytest.raises(InvalidConfigurationError) as refused:
        parse_duration("timeout", text)
    assert str(refused.value).startswith("Expected timeout to be milliseconds, or")
    assert repr(text) in str(refused.value)
    assert (refused.value.key, refused.value.value) == ("timeout", text)


@pytest.mark.parametrize("text", ["", "much", "5 min", 1.5, True, None])
def test_what_is_no_size_is_refused_with_key_and_value(text: object) -> None:
    with pytest.raises(InvalidConfigurationError, match="Expected threshold to be bytes, or"):
        parse_size("threshold", text)
