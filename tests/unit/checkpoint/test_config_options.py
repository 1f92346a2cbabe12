"""Durations and sizes as people write them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_provider_statecheck.checkpoint.config_options import parse_duration, parse_size, readable_size
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
        ("20 KB", 20_000),
        ("20KiB", 20 << 10),
        ("20 kib", 20 << 10),
        ("1 MB", 10**6),
        ("1.5 MiB", 3 << 19),
        ("1 GB", 10**9),
        ("1 GiB", 1 << 30),
        ("3 TB", 3 * 10**12),
        ("3 TiB", 3 << 40),
        ("-1 B", -1),
    ],
)
def test_a_bare_number_is_bytes_and_units_are_named_for_what_they_are(text: object, size: int) -> None:
    assert parse_size("threshold", text) == size


@pytest.mark.parametrize("text", ["", "soon", "5 parsecs", "1.5 s", 2.5, True, None, "s", "5 s 3", "9" * 30])
def test_what_is_no_duration_is_refused_with_key_and_value(text: object) -> None:
    with pytest.raises(InvalidConfigurationError) as refused:
        parse_duration("timeout", text)
    assert str(refused.value).startswith("Expected timeout to be milliseconds, or")
    assert repr(text) in str(refused.value)
    assert (refused.value.key, refused.value.value) == ("timeout", text)


@pytest.mark.parametrize("text", ["", "much", "5 min", 1.5, "0.5 B", "20 k", "1m", "2g", "1 kibibytes", True, None])
def test_what_is_no_size_is_refused_with_key_and_value(text: object) -> None:
    with pytest.raises(InvalidConfigurationError, match="Expected threshold to be bytes, or"):
        parse_size("threshold", text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3 << 19, "1.5 MiB"),
        (1 << 40, "1.0 TiB"),
        (1 << 50, "1024.0 TiB"),
    ],
)
def test_a_printed_size_can_be_read_again(count: int, text: str) -> None:
    assert readable_size(count) == text
    assert parse_size("size", text) == count
