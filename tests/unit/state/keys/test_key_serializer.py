"""Keys as Arrow columns and back, what cannot be a key, and keys of an earlier version."""

from __future__ import annotations

import enum
import math
import pickle
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.state.serializers.serializer import Outcome
from tests.key_values import EDGES, STRATEGIES, TYPES

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
    with pytest.raises(InvalidConfigurationError, match="found 1 columns"):
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
    assert "rename the columns back to customer, country in front of key_by, such as with .map(" in reason


def test_key_of_another_type_is_told_that_it_needs_another_uid() -> None:
    other = KeySerializer((KeyField("customer", pa.string()), KeyField("country", pa.string())))
    assert "use another uid" in other.resolve_compatibility(PAIR.snapshot()).reason
