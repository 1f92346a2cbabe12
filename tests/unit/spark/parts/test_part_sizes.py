"""Parts get the size that the measured time of earlier ones asks for."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.spark.parts.part_sizes import LONGEST_SECONDS, SHORTEST_SECONDS, PartSizes

MIB = 1024 * 1024


def sizes_after(total: int, rate: float, parts: int, interval: float | None = None) -> tuple[PartSizes, list[float]]:
    """Run parts at a constant rate, and return the sizes with the time of each part."""
    sizes, durations, left = PartSizes(total, is_bytes=True, interval_seconds=interval), list[float](), total
    for _ in range(parts):
        amount = min(sizes.amount, left)
        if not amount:
            break
        left -= amount
        durations.append(amount / rate)
        sizes.observe(amount, amount / rate)
    return sizes, durations


@pytest.mark.parametrize(
    ("total_seconds", "wanted"), [(20, SHORTEST_SECONDS), (120, 6.0), (600, 30.0), (36_000, LONGEST_SECONDS)]
)
def test_a_part_takes_a_twentieth_of_the_step_within_its_bounds(total_seconds, wanted):
    rate = 4.0 * MIB
    _, durations = sizes_after(int(total_seconds * rate), rate, 20)
    assert max(durations) == pytest.approx(wanted, rel=0.01)


def test_a_shorter_checkpoint_interval_makes_smaller_parts():
    rate = 4.0 * MIB
    _, durations = sizes_after(int(3600 * rate), rate, 20, interval=10.0)
    # The size of the first part is not measured yet.
    assert max(durations[1:]) == pytest.approx(10.0, rel=0.01)


def test_the_first_parts_are_small_and_grow_at_most_fourfold():
    rate = 64.0 * MIB
    _, durations = sizes_after(int(36_000 * rate), rate, 20)
    assert durations[0] <= 1.0
    assert all(later <= 4.01 * earlier for earlier, later in itertools.pairwise(durations))


@given(
    st.integers(0, 10**13), st.booleans(), st.lists(st.tuples(st.integers(1, 10**10), st.floats(0, 1e5)), max_size=9)
)
def test_a_part_is_never_empty_whatever_was_measured(total, is_bytes, measured):
    sizes = PartSizes(total, is_bytes=is_bytes, interval_seconds=None)
    for amount, seconds in measured:
        sizes.observe(amount, seconds)
        assert sizes.amount >= 1
        assert SHORTEST_SECONDS <= sizes.wanted_seconds <= LONGEST_SECONDS
