"""A warning where a number of key groups leaves little room to grow."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.stages.preparation import max_parallelism_advice, recommended_max_parallelism


@pytest.mark.parametrize(("parallelism", "max_parallelism"), [(1, 1), (4, 15), (100, 128), (8192, 32767)])
def test_fewer_key_groups_than_four_times_the_parallelism_are_warned_of(parallelism: int, max_parallelism: int) -> None:
    advice = max_parallelism_advice(parallelism, max_parallelism)
    assert advice is not None
    assert f"max_parallelism={max_parallelism} is less than 4 times the parallelism of {parallelism}" in advice
    assert f"Set max_parallelism={recommended_max_parallelism(parallelism)}" in advice
    assert "airflow statecheck rescale" in advice


@pytest.mark.parametrize(("parallelism", "max_parallelism"), [(1, 4), (4, 16), (32, 128), (20000, 32768)])
def test_enough_key_groups_or_the_most_there_can_be_are_not(parallelism: int, max_parallelism: int) -> None:
    assert max_parallelism_advice(parallelism, max_parallelism) is None


@pytest.mark.parametrize(("parallelism", "wanted"), [(1, 4), (3, 16), (4, 16), (33, 256), (32768, 32768)])
def test_the_recommended_number_is_a_power_of_two_of_at_least_four_times_the_parallelism(
    parallelism: int, wanted: int
) -> None:
    assert recommended_max_parallelism(parallelism) == wanted


def test_a_parallelism_out_of_bounds_is_refused() -> None:
    with pytest.raises(InvalidConfigurationError, match="parallelism 9"):
        max_parallelism_advice(9, 8)
