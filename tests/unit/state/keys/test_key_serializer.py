"""
Keys as Arrow columns and back, what cannot be a key, keys of an earlier version, and key groups as Spark computes them.
"""

from __future__ import annotations

import enum
import json
import math
import pickle
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.spark.stages.preparation import max_parallelism_advice, subtasks_within
from airflow_provider_statecheck.state.keys.key_groups import hash_bytes, hash_int, hash_long, key_group_of_hash
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.state.schema_evolution import Fate, OperatorSchemas, verdicts
from airflow_provider_statecheck.state.serializers.serializer import Outcome
from tests.key_values import EDGES, STRATEGIES, TYPES, decode

PAIR = KeySerializer((KeyField("customer", pa.int64()), KeyField("country", pa.string())))


def of_one(data_type: pa.DataType) -> KeySerializer:
    return KeySerializer((KeyField("k", data_type),))


@pytest.mark.parametrize("kind", TYPES)
@given(data=st.data())
def test_keys_come_back_from_columns_in_their_one_form(kind: str, data: st.DataObject) -> None:
    keys = data.draw(st.lists(st.one_of(STRATEGIES[kind], st.sampled_from(EDGES[kind]))))
    serializer = of_one(TYPES[kind])
    normal = [serializer.normalized(key) for key in keys]
    assert list(map(repr, serializer.from_columns(serializer.to_columns(keys)))) == list(map(repr, normal))


@pytest.mark.parametrize("keys", [[], [(1, "a"), (-2, "")]])
def test_a_key_of_several_columns_is_a_tuple(keys: list[Any]) -> None:
    columns = PAIR.to_columns(keys)
    assert [column.type for column in columns] == list(PAIR.arrow_types)
    assert PAIR.from_columns(columns) == keys


@pytest.mark.parametrize(
    ("serializer", "key"), [(of_one(pa.int64()), None), (PAIR, None), (PAIR, (1, None)), (PAIR, (None, "a"))]
)
def test_a_key_that_is_null_or_has_a_part_that_is_null_is_refused(serializer: KeySerializer, key: Any) -> None:
    for refuse in (serializer.require, serializer.normalized, lambda k: serializer.key_group_of(k, 128)):
        with pytest.raises(InvalidConfigurationError, match="filter rows without a key out"):
            refuse(key)


def test_a_column_with_a_null_is_refused_by_its_name() -> None:
    with pytest.raises(InvalidConfigurationError, match="found 2 rows without country"):
        PAIR.from_columns([pa.array([1, 2, 3]), pa.array(["a", None, None])])


@pytest.mark.parametrize("key", [1, (1,), (1, "a", 2), [1, "a"], "ab"])
def test_a_key_of_another_number_of_parts_is_refused(key: Any) -> None:
    with pytest.raises(InvalidConfigurationError, match="customer, country"):
        PAIR.require(key)


def test_another_number_of_columns_is_refused() -> None:
    with pytest.raises(InvalidConfigurationError, match="found 1 column"):
        PAIR.from_columns([pa.array([1])])


@pytest.mark.parametrize(
    ("data_type", "key"),
    [
        (pa.bool_(), 1),
        (pa.int8(), 128),
        (pa.int32(), True),
        (pa.int64(), 1 << 63),
        (pa.int64(), 1.0),
        (pa.int64(), "1"),
        (pa.float32(), 0.1),
        (pa.float32(), 1e300),
        (pa.float64(), "nan"),
        (pa.float64(), (1 << 53) + 1),
        pytest.param(pa.float64(), 10**400, id="double of 400 digits"),
        (pa.string(), b"a"),
        (pa.string(), "\ud800"),
        (pa.binary(), "a"),
        (pa.date32(), datetime.fromisoformat("2026-01-01")),
        (pa.timestamp("us", "UTC"), datetime.fromisoformat("2026-01-01")),
        (pa.timestamp("us", "UTC"), datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))),
        (pa.timestamp("us"), datetime(2026, 1, 1, tzinfo=UTC)),
        (pa.timestamp("us"), date(2026, 1, 1)),
        (pa.decimal128(4, 2), Decimal("1.234")),
        (pa.decimal128(4, 2), Decimal(100)),
        (pa.decimal128(4, 2), Decimal("NaN")),
        (pa.decimal128(4, 2), 1.5),
    ],
)
def test_a_part_of_another_type_than_its_column_is_refused_by_name(data_type: pa.DataType, key: Any) -> None:
    for use in (of_one(data_type).normalized, lambda k: of_one(data_type).to_columns([k])):
        with pytest.raises(UnsupportedStateError, match="as the part k of a key, found"):
            use(key)


class Color(str, enum.Enum):  # noqa: UP042 - its str() is not its text
    RED = "red"


@pytest.mark.parametrize(
    ("data_type", "key", "other"),
    [
        (pa.float64(), -0.0, 0.0),
        (pa.float32(), -0.0, 0.0),
        (pa.float64(), 1, 1.0),
        (pa.float64(), -math.nan, math.nan),
        (pa.decimal128(9, 3), Decimal("1.5"), Decimal("1.500")),
        (pa.decimal128(9, 3), 2, Decimal("2.000")),
        (pa.decimal128(9, 3), Decimal("-0"), Decimal("0.000")),
        (pa.int64(), np.int64(7), 7),
        (pa.string(), Color.RED, "red"),
        (pa.binary(), bytearray(b"a"), b"a"),
        (
            pa.timestamp("us", "Asia/Tokyo"),
            datetime(2026, 1, 1, 9, tzinfo=timezone(timedelta(hours=9))),
            datetime(2026, 1, 1, tzinfo=UTC),
        ),
    ],
)
def test_keys_that_spark_takes_for_equal_are_one_key(data_type: pa.DataType, key: Any, other: Any) -> None:
    serializer = of_one(data_type)
    assert repr(serializer.normalized(key)) == repr(serializer.normalized(other)) == repr(other)
    assert type(serializer.normalized(key)) is type(other)
    assert serializer.key_group_of(key, 32768) == serializer.key_group_of(other, 32768)


def test_nan_and_zero_of_a_column_are_each_one_key_in_a_mapping() -> None:
    column = pa.array([math.nan, -math.nan, 0.0, -0.0])
    keys = of_one(pa.float64()).from_columns([column])
    assert len(dict.fromkeys(keys)) == 2
    assert math.copysign(1, of_one(pa.float64()).normalized_columns([column])[0][3].as_py()) == 1


@pytest.mark.parametrize(
    "data_type",
    [
        pa.list_(pa.int64()),
        pa.map_(pa.string(), pa.int64()),
        pa.struct([("a", pa.int64())]),
        pa.duration("us"),
        pa.month_day_nano_interval(),
        pa.time64("ns"),
        pa.uint64(),
        pa.float16(),
        pa.decimal256(50, 2),
        pa.null(),
        pa.dictionary(pa.int32(), pa.string()),
    ],
)
def test_a_type_that_cannot_be_part_of_a_key_is_refused_when_the_stage_is_planned(data_type: pa.DataType) -> None:
    with pytest.raises(UnsupportedStateError, match="The column k cannot be part of a key"):
        of_one(data_type)


@pytest.mark.parametrize("names", [(), ("a", "a")])
def test_a_key_needs_columns_of_different_names(names: tuple[str, ...]) -> None:
    with pytest.raises(InvalidConfigurationError, match="columns with different names"):
        KeySerializer(tuple(KeyField(name, pa.int64()) for name in names))


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (pa.int64(), pa.array([1], pa.int32())),
        (pa.timestamp("us", "UTC"), pa.array([1], pa.timestamp("us"))),
        (pa.decimal128(9, 2), pa.array([Decimal("1.0")], pa.decimal128(9, 1))),
    ],
)
def test_a_column_of_another_type_is_refused_because_its_hash_would_differ(expected: Any, found: Any) -> None:
    with pytest.raises(UnsupportedStateError, match="Expected the key column k to be a"):
        of_one(expected).from_columns([found])


def test_a_time_that_python_has_not_is_refused() -> None:
    far = pa.array([1 << 60], pa.timestamp("us"))
    with pytest.raises(UnsupportedStateError, match="years 1 to 9999 in the key column k"):
        of_one(pa.timestamp("us")).from_columns([far])


def test_a_text_that_is_not_utf_8_is_refused_as_such() -> None:
    with pytest.raises(UnsupportedStateError, match="Expected texts in UTF-8 in the key column k"):
        of_one(pa.string()).from_columns([pa.array([b"\xffa"]).cast(pa.string(), safe=False)])


def test_a_time_finer_than_a_microsecond_is_refused() -> None:
    with pytest.raises(UnsupportedStateError, match="Expected the key column k to be a timestamp_ntz"):
        of_one(pa.timestamp("us")).from_columns([pa.array([1], pa.timestamp("ns"))])


def test_a_serializer_goes_to_executors_and_is_equal_there() -> None:
    PAIR.key_group_of((1, "a"), 128)
    copy = pickle.loads(pickle.dumps(PAIR))
    assert copy == PAIR
    assert copy.key_group_of((1, "a"), 128) == PAIR.key_group_of((1, "a"), 128)


def test_equal_keys_are_compatible_whatever_the_layout_of_their_columns() -> None:
    now = KeySerializer((KeyField("customer", pa.int64()), KeyField("country", pa.large_string())))
    assert now.resolve_compatibility(PAIR.snapshot()).outcome is Outcome.COMPATIBLE_AS_IS


@pytest.mark.parametrize(
    "fields",
    [
        (KeyField("customer", pa.int32()), KeyField("country", pa.string())),
        (KeyField("country", pa.string()), KeyField("customer", pa.int64())),
        (KeyField("client", pa.int64()), KeyField("country", pa.string())),
        (KeyField("customer", pa.int64()),),
    ],
)
def test_another_key_is_incompatible_and_never_migrated(fields: tuple[KeyField, ...]) -> None:
    verdict = KeySerializer(fields).resolve_compatibility(PAIR.snapshot())
    assert verdict.outcome is Outcome.INCOMPATIBLE
    assert "the key was customer bigint, country string, now it is" in verdict.reason


def test_key_whose_columns_were_renamed_is_told_how_to_go_on() -> None:
    renamed = KeySerializer((KeyField("client", pa.int64()), KeyField("country", pa.string())))
    reason = renamed.resolve_compatibility(PAIR.snapshot()).reason
    assert "name the old ones, as in key_by(..., aliases={'client': 'customer'});" in reason


def test_key_whose_column_names_its_former_name_goes_on() -> None:
    former = KeyField("client", pa.int64(), ("purchaser", "customer"))
    renamed = pickle.loads(pickle.dumps(KeySerializer((former, KeyField("country", pa.string())))))
    assert renamed.resolve_compatibility(PAIR.snapshot()).outcome is Outcome.COMPATIBLE_AS_IS
    (verdict,) = verdicts(OperatorSchemas(key=PAIR.snapshot()), OperatorSchemas(key=renamed.snapshot()))
    assert verdict.fate is Fate.AS_IS


@pytest.mark.parametrize(
    "fields",
    [
        (KeyField("client", pa.int32(), ("customer",)), KeyField("country", pa.string())),
        (KeyField("client", pa.int64(), ("country",)), KeyField("country", pa.string())),
        (KeyField("client", pa.int64(), ("customer",)),),
    ],
)
def test_former_name_hides_no_other_change_of_a_key(fields: tuple[KeyField, ...]) -> None:
    assert KeySerializer(fields).resolve_compatibility(PAIR.snapshot()).outcome is Outcome.INCOMPATIBLE


def test_key_of_another_type_is_told_that_it_needs_another_uid() -> None:
    other = KeySerializer((KeyField("customer", pa.string()), KeyField("country", pa.string())))
    assert "use another uid" in other.resolve_compatibility(PAIR.snapshot()).reason


VECTORS = json.loads((Path(__file__).parent / "key_groups.json").read_text())
SINGLE = sorted(set(VECTORS) - {"several"})
SEVERAL_TYPES = VECTORS["several"]["types"]
SEVERAL = KeySerializer(tuple(KeyField(name, TYPES[name]) for name in SEVERAL_TYPES))


def test_there_are_vectors_of_every_type() -> None:
    assert {*TYPES, "several"} == set(VECTORS)


@pytest.mark.parametrize("groups", [128, 1000, 32768])
@pytest.mark.parametrize("kind", SINGLE)
def test_a_key_of_each_type_has_the_key_group_that_spark_computed(kind: str, groups: int) -> None:
    values = [decode(kind, value) for value in VECTORS[kind]["values"]]
    expected = VECTORS[kind]["key_groups"][str(groups)]
    assert [of_one(TYPES[kind]).key_group_of(value, groups) for value in values] == expected
    assert of_one(TYPES[kind]).key_groups_of([pa.array(values, TYPES[kind])], groups).tolist() == expected


@pytest.mark.parametrize("groups", [128, 1000, 32768])
def test_a_key_of_several_columns_is_hashed_column_by_column(groups: int) -> None:
    keys = [tuple(map(decode, SEVERAL_TYPES, key)) for key in VECTORS["several"]["values"]]
    expected = VECTORS["several"]["key_groups"][str(groups)]
    assert [SEVERAL.key_group_of(key, groups) for key in keys] == expected
    assert SEVERAL.key_groups_of(SEVERAL.to_columns(keys), groups).tolist() == expected


@pytest.mark.parametrize("kind", TYPES)
@given(data=st.data())
def test_the_key_groups_of_a_column_are_those_of_its_keys(kind: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.one_of(STRATEGIES[kind], st.sampled_from(EDGES[kind])), max_size=20))
    columns = of_one(TYPES[kind]).to_columns(values)
    found = of_one(TYPES[kind]).key_groups_of(columns, 999).tolist()
    assert found == [of_one(TYPES[kind]).key_group_of(value, 999) for value in values]


@pytest.mark.parametrize("layout", [pa.string(), pa.large_string(), pa.string_view()])
def test_the_layout_of_an_arrow_column_does_not_matter(layout: Any) -> None:
    texts = ["", "a", "x" * 40, "grüße", "a"]
    serializer = of_one(pa.string())
    expected = [serializer.key_group_of(text, 128) for text in texts[1:]]
    sliced = pa.array(texts, layout).slice(1)
    assert serializer.key_groups_of([sliced], 128).tolist() == expected
    chunked = pa.chunked_array([sliced.slice(0, 2), sliced.slice(2)])
    assert serializer.key_groups_of([chunked], 128).tolist() == expected


@pytest.mark.parametrize("kind", TYPES)
def test_a_slice_of_a_column_is_hashed_alone(kind: str) -> None:
    column = pa.array(EDGES[kind], TYPES[kind]).slice(1, 1)
    assert of_one(TYPES[kind]).key_groups_of([column], 128).tolist() == VECTORS[kind]["key_groups"]["128"][1:2]


def test_long_columns_of_long_texts_are_hashed_in_parts() -> None:
    texts = [f"{number:0>4096}" for number in range(1100)]
    serializer = of_one(pa.string())
    found = serializer.key_groups_of([pa.array(texts)], 32768).tolist()
    assert found[::100] == [serializer.key_group_of(text, 32768) for text in texts[::100]]


@pytest.mark.parametrize("kind", TYPES)
def test_no_keys_have_no_key_groups(kind: str) -> None:
    assert of_one(TYPES[kind]).key_groups_of([pa.array([], TYPES[kind])], 128).tolist() == []


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


@pytest.mark.parametrize(
    ("parallelism", "max_parallelism", "wanted"),
    [(1, 1, 4), (3, 11, 16), (4, 15, 16), (33, 128, 256), (8192, 32767, 32768), (20000, 32767, 32768)],
)
def test_a_power_of_two_of_at_least_four_times_the_parallelism_is_advised_for_fewer_key_groups(
    parallelism: int, max_parallelism: int, wanted: int
) -> None:
    advice = max_parallelism_advice(parallelism, max_parallelism)
    assert advice is not None
    assert f"max_parallelism={max_parallelism} is less than 4 times the parallelism of {parallelism}" in advice
    assert f"Set max_parallelism={wanted} before" in advice
    assert "airflow statecheck rescale" in advice


@pytest.mark.parametrize(("parallelism", "max_parallelism"), [(1, 4), (4, 16), (32, 128), (20000, 32768)])
def test_enough_key_groups_or_the_most_there_can_be_are_not(parallelism: int, max_parallelism: int) -> None:
    assert max_parallelism_advice(parallelism, max_parallelism) is None


def test_a_parallelism_out_of_bounds_is_refused() -> None:
    with pytest.raises(InvalidConfigurationError, match="parallelism 9"):
        max_parallelism_advice(9, 8)


@pytest.mark.parametrize(
    ("bounds", "subtasks"),
    [((None, None), 6), ((128, None), 6), ((6, None), 6), ((4, None), 4), ((None, 4), 4), ((8, 3), 3)],
)
def test_a_cluster_with_more_slots_than_key_groups_runs_one_subtask_for_each_key_group_and_says_so(
    bounds: tuple[int | None, int | None], subtasks: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert subtasks_within(6, bounds) == subtasks
    assert [record.levelname for record in caplog.records] == ["WARNING"] * (subtasks < 6)
    assert all(f"parallelism={subtasks}" in text and "6 task slots" in text for text in caplog.messages)


def test_no_cluster_has_too_many_slots_for_the_most_key_groups_there_can_be() -> None:
    assert subtasks_within(40_000, (None, None)) == 32_768
