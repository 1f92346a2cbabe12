"""Sizes as people write them."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.sources.enumerator import parse_bytes_per_increment, require_count


@pytest.mark.parametrize(
    ("written", "size"),
    [(7, 7), ("7", 7), ("256 MiB", 256 << 20), ("2gib", 2 << 30), ("1.5 kB", 1500), ("1 GB", 10**9), ("3b", 3)],
)
def test_a_size_is_a_number_or_a_text_with_a_unit(written, size):
    assert parse_bytes_per_increment(written) == size


@pytest.mark.parametrize("written", [None, "auto"])
def test_without_a_size_the_source_finds_one_itself(written):
    assert parse_bytes_per_increment(written) is None


@pytest.mark.parametrize("written", [0, -1, "", "MiB", "1 XB", "-3", "0.1 B", True, 1.5, "1 T"])
def test_what_is_no_size_is_refused_by_the_name_of_the_argument(written):
    with pytest.raises(InvalidConfigurationError, match="Expected bytes_per_increment to be"):
        parse_bytes_per_increment(written)


@pytest.mark.parametrize("count", [0, -1, True, "3", 1.0])
def test_what_is_no_count_is_refused(count):
    with pytest.raises(InvalidConfigurationError, match="Expected files to be a number from 1"):
        require_count(count, "files")
