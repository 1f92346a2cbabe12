"""Sizes as people write them."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.sources.sizes import parse_size, require_count


@pytest.mark.parametrize(
    ("written", "size"),
    [(7, 7), ("7", 7), ("256 MiB", 256 << 20), ("2gib", 2 << 30), ("1.5 kB", 1500), ("1 T", 10**12), ("3b", 3)],
)
def test_a_size_is_a_number_or_a_text_with_a_unit(written, size):
    assert parse_size(written, "limit") == size


@pytest.mark.parametrize("written", [0, -1, "", "MiB", "1 XB", "-3", "0.1 B", True, None, 1.5])
def test_what_is_no_size_is_refused_by_the_name_of_the_argument(written):
    with pytest.raises(InvalidConfigurationError, match="Expected limit to be"):
        parse_size(written, "limit")


@pytest.mark.parametrize("count", [0, -1, True, "3", 1.0])
def test_what_is_no_count_is_refused(count):
    with pytest.raises(InvalidConfigurationError, match="Expected files to be a number from 1"):
        require_count(count, "files")
