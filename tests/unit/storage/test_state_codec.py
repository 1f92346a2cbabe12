from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.exceptions import CorruptStateError, UnsupportedStateError
from airflow_provider_statecheck.storage.state_json import decode_state, encode_state

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.dates(),
    st.datetimes(timezones=st.sampled_from([None, UTC])),
    st.times(),
    st.timedeltas(),
    st.decimals(allow_nan=False),
    st.uuids(),
)
KEYS = st.one_of(st.text(), st.integers(), st.dates(), st.tuples(st.text(), st.integers()))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner), st.tuples(inner, inner), st.dictionaries(KEYS, inner), st.frozensets(SCALARS), st.sets(KEYS)
    ),
    max_leaves=12,
)


def _types(value: Any) -> Any:
    if isinstance(value, dict):
        return {(type(k), k): _types(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [_types(item) for item in value]
    return type(value)


@given(VALUES)
def test_every_value_comes_back_equal_and_of_its_type(value: Any) -> None:
    back = decode_state(json.loads(json.dumps(encode_state(value))))
    assert back == value
    assert _types(back) == _types(value)


def test_not_a_number_comes_back() -> None:
    assert math.isnan(decode_state(encode_state(math.nan)))


def test_user_keys_that_look_like_marks_are_no_marks() -> None:
    value = {"$date": "2026-01-01", "$dict": []}
    assert decode_state(encode_state(value)) == value


def test_what_cannot_be_saved_is_named_with_its_place() -> None:
    with pytest.raises(UnsupportedStateError, match=r"state\['a'\]\[1\].*builtins\.object"):
        encode_state({"a": [1, object()]})


def test_a_subclass_is_refused_for_it_would_come_back_as_its_base() -> None:
    class Text(str):
        __slots__ = ()

    with pytest.raises(UnsupportedStateError):
        encode_state(Text("x"))


@pytest.mark.parametrize("broken", [{}, {"$date": "x"}, {"$nothing": 1}, {"a": 1, "b": 2}, {"$dict": [1]}])
def test_broken_json_is_corrupt_state(broken: Any) -> None:
    with pytest.raises(CorruptStateError):
        decode_state(broken)


def test_examples_of_each_type() -> None:
    values = [date(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC), time(1, 2), timedelta(days=-1), Decimal("1.50")]
    assert decode_state(encode_state(values)) == values
