"""Lists as one column, and what an evolved element makes of them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.state.keyed.registered_state import ListCellSerializer
from airflow_provider_statecheck.state.serializers.resolve import serializer_of
from airflow_provider_statecheck.state.serializers.serializer import Outcome

TEXTS = ListCellSerializer(serializer_of(str))


@given(st.lists(st.none() | st.lists(st.text(max_size=3), max_size=4), max_size=6))
def test_lists_come_back_as_they_were(values: list[list[str] | None]) -> None:
    array = TEXTS.to_arrow(values)
    assert array.type == TEXTS.arrow_type
    assert array.null_count == values.count(None)
    assert TEXTS.from_arrow(array) == values


@given(st.lists(st.none() | st.lists(st.text(max_size=3), max_size=4), min_size=2, max_size=6), st.integers(0, 3))
def test_part_of_a_column_comes_back_as_it_was(values: list[list[str] | None], start: int) -> None:
    array = TEXTS.to_arrow(values).slice(start, 2)
    assert TEXTS.from_arrow(array) == values[start : start + 2]


def test_list_with_nulls_below_which_there_are_values_is_read() -> None:
    array = pa.ListArray.from_arrays(
        pa.array([0, 2, 3], pa.int32()), pa.array(["a", "b", "c"]), mask=pa.array([True, False])
    )
    assert TEXTS.from_arrow(array) == [None, ["c"]]


def test_copy_shares_nothing() -> None:
    lists = ListCellSerializer(serializer_of(list[int]))
    original = [[1], [2]]
    copy = lists.copy(original)
    copy[0].append(3)
    copy.append([4])
    assert original == [[1], [2]]


@pytest.mark.parametrize(
    ("old", "outcome"),
    [
        (pa.int64(), Outcome.COMPATIBLE_AS_IS),
        (pa.int32(), Outcome.COMPATIBLE_AFTER_MIGRATION),
        (pa.string(), Outcome.INCOMPATIBLE),
    ],
)
def test_lists_evolve_as_their_elements_do(old: pa.DataType, outcome: Outcome) -> None:
    lists = ListCellSerializer(serializer_of(pa.int64()))
    assert lists.resolve_compatibility(serializer_of(old).snapshot()).outcome is outcome
    assert lists.snapshot() == serializer_of(pa.int64()).snapshot()
