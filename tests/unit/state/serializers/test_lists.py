"""Lists and maps of Arrow that others made, with something behind their nulls."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_statecheck.state.serializers.resolve import serializer_of

NULLS = pa.array([False, True, False])
OFFSETS = pa.array([0, 1, 3, 4], pa.int32())
NUMBERS = pa.array([1, 2, 3, 4], pa.int32())
LISTS = pa.ListArray.from_arrays(OFFSETS, NUMBERS, mask=NULLS)
MAPS = pa.MapArray.from_arrays(OFFSETS, NUMBERS, NUMBERS, mask=NULLS)


@pytest.mark.parametrize(
    ("narrow", "wide", "array", "expected"),
    [
        (pa.list_(pa.int32()), list[int], LISTS, [[1], None, [4]]),
        (pa.map_(pa.int32(), pa.int32()), dict[int, int], MAPS, [{1: 1}, None, {4: 4}]),
    ],
    ids=["lists", "maps"],
)
@pytest.mark.parametrize("start", [0, 1, 2])
def test_what_lies_behind_a_null_counts_for_nothing(
    narrow: Any, wide: Any, array: Any, expected: list[Any], start: int
) -> None:
    assert serializer_of(narrow).from_arrow(array[start:]) == expected[start:]
    verdict = serializer_of(pa.list_(pa.int64()) if wide == list[int] else pa.map_(pa.int64(), pa.int64()))
    migrate = verdict.resolve_compatibility(serializer_of(narrow).snapshot()).migrate
    assert migrate is not None
    converted = migrate(array[start:])
    converted.validate(full=True)
    assert serializer_of(wide).from_arrow(converted) == expected[start:]
