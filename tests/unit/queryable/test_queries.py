from __future__ import annotations

import math
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from time import process_time
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa
import pytest

from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.queryable.json_values import json_of
from airflow_provider_statecheck.queryable.queries import (
    ABSENT,
    JsonKeys,
    JsonUserKey,
    PythonKeys,
    StateQuery,
    TextUserKey,
)
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.state.serializers.resolve import restored_user_keys, serializer_of

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
TYPES: list[tuple[Any, Any, str]] = [
    (pa.bool_(), True, "true"),
    (pa.int8(), -5, "-5"),
    (pa.int16(), 300, "300"),
    (pa.int32(), 70000, "70000"),
    (pa.int64(), 2**63 - 1, str(2**63 - 1)),
    (pa.float32(), 1.5, "1.5"),
    (pa.float64(), 0.1, "0.1"),
    (pa.float64(), -math.inf, "-Infinity"),
    (pa.string(), "a\x00é,[]", "a\x00é,[]"),
    (pa.string(), "", ""),
    (pa.binary(), b"\xff\x00", "/wA="),
    (pa.date32(), date(2026, 1, 31), "2026-01-31"),
    (pa.timestamp("us", "UTC"), NOON, "2026-01-31T13:00:00+01:00"),
    (pa.timestamp("us"), NOON.replace(tzinfo=None), "2026-01-31T12:00:00"),
    (pa.decimal128(10, 2), Decimal("12.50"), "12.5"),
]
IDS = [f"{kind}-{text.encode('unicode_escape').decode()}" for kind, _, text in TYPES]
PAIR = KeySerializer((KeyField("country", pa.string()), KeyField("number", pa.int64())))


def keys_of(kind: Any) -> KeySerializer:
    return KeySerializer((KeyField("k", kind),))


@pytest.mark.parametrize(("kind", "value", "text"), TYPES, ids=IDS)
def test_a_key_of_each_type_is_the_same_in_python_and_as_text(kind, value, text):
    forms = PythonKeys((value,)), JsonKeys((text,)), JsonKeys(((text,),))

    assert [form.decoded(keys_of(kind)) for form in forms] == [(value,)] * 3


def test_nan_is_one_key():
    assert JsonKeys(("NaN",)).decoded(keys_of(pa.float64())) == (math.nan,)


@pytest.mark.parametrize(("kind", "value"), [(pa.int32(), 7), (pa.float64(), 2.5), (pa.bool_(), False)])
def test_numbers_and_booleans_of_json_are_themselves(kind, value):
    assert JsonKeys((value, [value])).decoded(keys_of(kind)) == (value, value)


def test_a_composite_key_is_a_tuple_a_list_of_json_or_a_text_per_column():
    forms = PythonKeys((("de", 4),)), JsonKeys((["de", 4],)), JsonKeys((("de", "4"),))

    assert [form.decoded(PAIR) for form in forms] == [(("de", 4),)] * 3


@pytest.mark.parametrize("form", [JsonKeys(("de",)), JsonKeys((("de",),)), JsonKeys((("de", "4", "5"),))])
def test_a_composite_key_needs_a_value_for_each_column(form):
    with pytest.raises(InvalidConfigurationError, match="each of country, number"):
        form.decoded(PAIR)


def test_a_key_without_a_value_is_rejected():
    with pytest.raises(InvalidConfigurationError, match="a value for each of country, number"):
        JsonKeys((["de", None],)).decoded(PAIR)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.int64(), "1_000"),
        (pa.int64(), "07"),
        (pa.int64(), "[5"),
        (pa.int64(), "[" * 10_000),
        (pa.int64(), "9" * 5000),
        (pa.int64(), "\u0665"),
        (pa.int64(), "5.0"),
        (pa.float64(), "1_0"),
        (pa.float64(), "nan?"),
        (pa.float64(), "9" * 400),
        (pa.float64(), "1e400"),
        (pa.bool_(), "yes"),
        (pa.binary(), "no base64!"),
        (pa.date32(), "31.1.2026"),
        (pa.timestamp("us", "UTC"), "noon"),
        (pa.timestamp("us", "UTC"), "0001-01-01T00:00:00+14:00"),
        (pa.timestamp("us", "UTC"), "2026-01-31T12:00:00[Europe]"),
        (pa.timestamp("us", "UTC"), "2026-01-31T12:00:00"),
        (pa.decimal128(10, 2), "12,5"),
        (pa.decimal128(10, 2), "1_0"),
        (pa.decimal128(10, 2), "NaN"),
    ],
)
def test_a_text_that_is_not_of_the_type_is_rejected_with_the_form_to_write(kind, text):
    with pytest.raises(UnsupportedStateError, match=r"as the part k of a key, found the text .*; write .+\."):
        JsonKeys((text,)).decoded(keys_of(kind))


FAR_DECIMALS = ["1e77", "-1e-77", "1e99999", "0e99999", "0." + "1" * 200, "1e4000000000", "1" * 200_000 + "e5"]


@pytest.mark.parametrize("text", FAR_DECIMALS, ids=lambda text: text[:20])
@pytest.mark.parametrize("form", [JsonUserKey, TextUserKey])
def test_a_decimal_that_no_state_can_have_is_refused_before_its_digits_are_written(form, text):
    with pytest.raises(UnsupportedStateError, match="write the digits of a decimal, as text"):
        form(text).decoded(serializer_of(Decimal))


def test_a_python_decimal_that_no_state_can_have_is_refused_before_its_digits_are_written():
    with pytest.raises(UnsupportedStateError, match=r"between 1e-76 and 1e76, found Decimal\('1E\+4000000'\)"):
        JsonUserKey(json_of(Decimal("1e4000000"))).decoded(serializer_of(Decimal))


@pytest.mark.parametrize("text", ["1" * 16_000 + "x", "0." + "1" * 16_000 + "x"], ids=["digits", "fraction"])
def test_a_long_text_that_is_no_decimal_is_refused_at_once(text):
    start = process_time()
    with pytest.raises(UnsupportedStateError, match="write the digits of a decimal, as text"):
        JsonKeys((text,)).decoded(keys_of(pa.decimal128(10, 2)))
    assert process_time() - start < 1


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.int8(), "300"),
        (pa.int64(), str(2**63)),
        (pa.decimal128(4, 2), "123.45"),
        (pa.decimal128(38, 0), "1e76"),
    ],
)
def test_a_text_whose_value_does_not_fit_the_column_is_rejected(kind, text):
    with pytest.raises(UnsupportedStateError, match="as the part k of a key"):
        JsonKeys((text,)).decoded(keys_of(kind))


@pytest.mark.parametrize("key_type", [int, str, float, bool, date])
def test_a_user_key_is_the_same_in_python_in_json_and_as_text(key_type):
    text, data, value = {
        int: ("5", 5, 5),
        str: ("5", "5", "5"),
        float: ("0.5", 0.5, 0.5),
        bool: ("true", True, True),
        date: ("2026-01-31", "2026-01-31", date(2026, 1, 31)),
    }[key_type]
    serializer = serializer_of(key_type)

    found = [form.decoded(serializer) for form in (JsonUserKey(json_of(value)), JsonUserKey(data), TextUserKey(text))]

    assert found == [value] * 3
    assert {type(each) for each in found} == {key_type}


class Place(NamedTuple):
    row: int
    column: str


@pytest.mark.parametrize(
    "form", [JsonUserKey({"row": 1, "column": "a"}), JsonUserKey([1, "a"]), TextUserKey('[1, "a"]')]
)
def test_a_user_key_that_is_a_record_is_an_object_or_a_list(form):
    serializer = restored_user_keys(serializer_of(Place).snapshot())
    assert form.decoded(serializer) == {"row": 1, "column": "a"}


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (JsonUserKey([1, "a", 2]), "a list of 2 values"),
        (JsonUserKey([1]), "a list of 2 values"),
        (JsonUserKey(json_of((1, "a", 2))), "a list of 2 values"),
        (TextUserKey('[1, "a", 2]'), "a list of 2 values"),
        (JsonUserKey({"row": 1, "column": "a", "sheet": 3}), "only the fields of the record"),
        (JsonUserKey({"row": 1, "sheet": 3}), "a value"),
    ],
)
def test_a_user_key_with_other_fields_than_the_record_is_refused(form, expected):
    serializer = restored_user_keys(serializer_of(Place).snapshot())
    with pytest.raises(UnsupportedStateError, match=expected):
        form.decoded(serializer)


@pytest.mark.parametrize(
    ("key_type", "value"),
    [
        (int, "5"),
        (int, 5.0),
        (int, True),
        (float, "NaN"),
        (bytes, "abcd"),
        (bytes, Decimal(1234)),
        (date, "2026-01-31"),
        (datetime, date(2026, 1, 31)),
        (str, date(2026, 1, 31)),
        (str, b"abcd"),
        (UUID, UUID(int=1).hex),
        (tuple[int, str], (1, b"a")),
    ],
)
def test_a_python_value_of_another_class_is_no_user_key(key_type, value):
    serializer = restored_user_keys(serializer_of(key_type).snapshot())
    with pytest.raises(UnsupportedStateError, match="as the key of a map's entry"):
        JsonUserKey(json_of(value)).decoded(serializer)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (JsonUserKey(True), "a whole number"),
        (JsonUserKey("5"), "a whole number"),
        (TextUserKey("1.5"), "a whole number"),
        (TextUserKey("one"), "a whole number"),
        (TextUserKey("[" * 10_000), "a whole number"),
    ],
)
def test_a_user_key_of_another_type_is_rejected_with_the_form_to_write(form, expected):
    with pytest.raises(UnsupportedStateError, match=f"int64 as the key of a map's entry.*write {expected}"):
        form.decoded(serializer_of(int))


def test_absent_is_one_value_in_all_processes():
    assert pickle.loads(pickle.dumps(ABSENT)) is ABSENT


@pytest.mark.parametrize("name", ["", ".", "..", "a\nb", "a\x00b", "\ud800"])
def test_query_of_a_name_that_no_state_can_have_is_refused(name):
    with pytest.raises(InvalidConfigurationError, match="queryable_name"):
        StateQuery(job_id=JobId("0" * 32), name=name, keys=PythonKeys(("a",)))
