"""The key groups of keys are those that Spark computed, and a warning where their number leaves little room to grow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.stages.preparation import max_parallelism_advice, recommended_max_parallelism
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer, key_groups
from airflow_provider_statecheck.state.keys.key_types import hash_bytes, hash_int, hash_long, key_group_of_hash
from tests.key_values import EDGES, STRATEGIES, TYPES, decode

VECTORS = json.loads((Path(__file__).parent / "key_groups.json").read_text())
SINGLE = sorted(set(VECTORS) - {"several"})
SEVERAL = KeySerializer(tuple(KeyField(name, TYPES[name]) for name in VECTORS["several"]["types"]))


def of_one(kind: str) -> KeySerializer:
    return KeySerializer((KeyField("k", TYPES[kind]),))


def test_there_are_vectors_of_every_type() -> None:
    assert {*TYPES, "several"} == set(VECTORS)


@pytest.mark.parametrize("groups", [128, 1000, 32768])
@pytest.mark.parametrize("kind", SINGLE)
def test_a_key_of_each_type_has_the_key_group_that_spark_computed(kind: str, groups: int) -> None:
    values = [decode(kind, value) for value in VECTORS[kind]["values"]]
    expected = VECTORS[kind]["key_groups"][str(groups)]
    assert [of_one(kind).key_group_of(value, groups) for value in values] == expected
    assert of_one(kind).key_groups_of([pa.array(values, TYPES[kind])], groups).tolist() == expected


@pytest.mark.parametrize("groups", [128, 1000, 32768])
def test_a_key_of_several_columns_is_hashed_column_by_column(groups: int) -> None:
    keys = [tuple(map(decode, SEVERAL_TYPES, key)) for key in VECTORS["several"]["values"]]
    expected = VECTORS["several"]["key_groups"][str(groups)]
    assert [SEVERAL.key_group_of(key, groups) for key in keys] == expected
    assert SEVERAL.key_groups_of(SEVERAL.to_columns(keys), groups).tolist() == expected


SEVERAL_TYPES = VECTORS["several"]["types"]


@pytest.mark.parametrize("kind", TYPES)
@given(data=st.data())
def test_the_key_groups_of_a_column_are_those_of_its_keys(kind: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.one_of(STRATEGIES[kind], st.sampled_from(EDGES[kind])), max_size=20))
    columns = of_one(kind).to_columns(values)
    assert key_groups(columns, 999).tolist() == [of_one(kind).key_group_of(value, 999) for value in values]


@pytest.mark.parametrize("layout", [pa.string(), pa.large_string(), pa.string_view()])
def test_the_layout_of_an_arrow_column_does_not_matter(layout: Any) -> None:
    texts = ["", "a", "x" * 40, "grüße", "a"]
    serializer = of_one("string")
    expected = [serializer.key_group_of(text, 128) for text in texts[1:]]
    sliced = pa.array(texts, layout).slice(1)
    assert serializer.key_groups_of([sliced], 128).tolist() == expected
    chunked = pa.chunked_array([sliced.slice(0, 2), sliced.slice(2)])
    assert serializer.key_groups_of([chunked], 128).tolist() == expected


@pytest.mark.parametrize("kind", TYPES)
def test_a_slice_of_a_column_is_hashed_alone(kind: str) -> None:
    column = pa.array(EDGES[kind], TYPES[kind]).slice(1, 1)
    assert of_one(kind).key_groups_of([column], 128).tolist() == VECTORS[kind]["key_groups"]["128"][1:2]


def test_long_columns_of_long_texts_are_hashed_in_parts() -> None:
    texts = [f"{number:0>4096}" for number in range(1100)]
    serializer = of_one("string")
    found = serializer.key_groups_of([pa.array(texts)], 32768).tolist()
    assert found[::100] == [serializer.key_group_of(text, 32768) for text in texts[::100]]


@pytest.mark.parametrize("kind", TYPES)
def test_no_keys_have_no_key_groups(kind: str) -> None:
    assert of_one(kind).key_groups_of([pa.array([], TYPES[kind])], 128).tolist() == []


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_the_hash_is_the_published_one(data: bytes, expected: int) -> None:
    assert hash_bytes(data, 0) == expected


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, (1 << 64) - 1))
def test_a_number_is_hashed_as_its_bytes(number: int, seed: int) -> None:
    assert hash_long(number, seed) == hash_bytes(number.to_bytes(8, "little", signed=True), seed)
    half = number >> 32
    assert hash_int(half, seed) == hash_bytes(half.to_bytes(4, "little", signed=True), seed)


@pytest.mark.parametrize(("hashed", "expected"), [(0, 0), (129, 1), ((1 << 64) - 1, 127), (1 << 63, 0)])
def test_a_hash_is_a_signed_number_and_its_key_group_is_never_negative(hashed: int, expected: int) -> None:
    assert key_group_of_hash(hashed, 128) == expected


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
