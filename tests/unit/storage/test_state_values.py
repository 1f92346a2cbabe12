from __future__ import annotations

import json
from collections import OrderedDict, defaultdict
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings, strategies as st

from airflow_provider_statecheck.exceptions import CorruptStateError, UnsupportedStateError
from airflow_provider_statecheck.storage.stored_json import MAX_DEPTH, decode_state, encode_state

BERLIN = ZoneInfo("Europe/Berlin")


class Point(NamedTuple):
    x: int
    y: int


class Colour(IntEnum):
    RED = 1


class Word(StrEnum):
    YES = "yes"


class OddZone(tzinfo):
    """A time zone that only its own code can describe."""

    def utcoffset(self, _: datetime | None) -> timedelta:
        return timedelta(hours=1)

    def dst(self, _: datetime | None) -> timedelta:
        return timedelta(0)

    def tzname(self, _: datetime | None) -> str:
        return "ODD"


def through_json(value: Any) -> Any:
    """Save and restore by way of the bytes that a checkpoint is made of."""
    text = json.dumps(encode_state(value), ensure_ascii=False, sort_keys=True, allow_nan=False)
    return decode_state(json.loads(text.encode("utf-8")))


def same(left: Any, right: Any) -> bool:
    """Equal in value, type, order of keys, sign of zero, fold and time zone; a nan is like a nan."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return same(list(left), list(right)) and same(list(left.values()), list(right.values()))
    if isinstance(left, set | frozenset):
        return len(left) == len(right) and all(any(same(a, b) for b in right) for a in left)
    if isinstance(left, datetime | time):
        return repr(left) == repr(right)
    if isinstance(left, float | Decimal):
        return str(left) == str(right)
    return bool(left == right)


zones = st.none() | st.sampled_from([UTC, BERLIN, ZoneInfo("UTC")]) | st.builds(
    timezone, st.timedeltas(timedelta(hours=-23), timedelta(hours=23))
)  # fmt: skip
keys = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(), max_size=5),
    st.binary(max_size=5),
    st.dates(),
    st.datetimes(timezones=zones),
    st.times(timezones=zones),
    st.timedeltas(),
    st.decimals(),
    st.uuids(),
).filter(lambda v: not (isinstance(v, Decimal) and v.is_snan()))
hashables = st.recursive(
    keys, lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3), max_leaves=5
)
values = st.recursive(
    hashables,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.sets(hashables, max_size=3)
        | st.dictionaries(hashables, inner, max_size=3)
    ),
    max_leaves=15,
)


@settings(max_examples=200, deadline=None)
@given(values)
def test_any_supported_value_comes_back_the_same(value: Any) -> None:
    assert same(through_json(value), value)


@pytest.mark.parametrize(
    "value",
    [
        True,
        1,
        2**64,
        -(2**64),
        10**5000,
        -0.0,
        5e-324,
        float("nan"),
        float("-inf"),
        "",
        "$date",
        "\ud800",
        "\ud83d\ude00",
        "\U0001f600",
        "\x00",
        b"",
        b"\xff\x00",
        date.min,
        datetime(9999, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001 - naive on purpose
        datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN),
        datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=1), "CET")),
        datetime(2026, 1, 1, tzinfo=timezone(-timedelta(microseconds=1))),
        time(1, 2, 3, 4, tzinfo=BERLIN),
        time(1, fold=1),
        timedelta.min,
        timedelta.max,
        Decimal("1.10"),
        Decimal("-0"),
        Decimal("1E+999999"),
        Decimal("NaN"),
        Decimal("sNaN7"),
        UUID(int=0),
        [],
        (),
        set(),
        frozenset(),
        {},
        {"$date": "2026-01-01"},
        {"$dict": []},
        {2: "int", "2": "text", True: "b", None: 0, (1, ()): 3, date(2026, 1, 1): 4, b"k": 5, 1.5: 6},
        {False: "bool"},
        {"z": 1, "a": 2},
        {frozenset({frozenset({1}), 2}): {3, "3", b"3", (3,)}},
        [[], {}, (), [None]],
    ],
    ids=lambda v: f"{type(v).__name__}-{str(v)[:12]!a}" if type(v) is not int else f"int-{v.bit_length()}-bits",
)
def test_value_at_an_edge_comes_back_the_same(value: Any) -> None:
    assert same(through_json(value), value)


def test_time_zone_keeps_its_rules_and_its_name() -> None:
    """An offset alone would be wrong by an hour on the other side of a change of the clocks."""
    winter = through_json(datetime(2026, 3, 1, 12, tzinfo=BERLIN))
    assert winter.tzinfo is BERLIN
    assert (winter + timedelta(days=60)).utcoffset() == timedelta(hours=2)
    named = through_json(datetime(2026, 3, 1, tzinfo=timezone(timedelta(hours=1), "CET")))
    assert named.tzname() == "CET"


def test_zone_of_a_subclass_is_restored_by_its_key() -> None:
    """Airflow's own times carry such a zone."""

    class Zone(ZoneInfo):
        pass

    restored = through_json(datetime(2026, 1, 1, tzinfo=Zone("Europe/Berlin")))
    assert restored == datetime(2026, 1, 1, tzinfo=BERLIN)


def test_equal_values_give_equal_bytes_whatever_the_order_in_a_set() -> None:
    left, right = set(range(0, 24, 8)), set(range(16, -1, -8))
    assert list(left) != list(right)
    assert json.dumps(encode_state(left)) == json.dumps(encode_state(right))


@pytest.mark.parametrize(
    ("value", "place", "found"),
    [
        (object(), "state", "builtins.object"),
        ({"a": [1, 2, 3, object()]}, "state['a'][3]", "builtins.object"),
        ([({"k": complex(1)},)], "state[0][0]['k']", "builtins.complex"),
        ({Colour.RED: 1}, "state key <Colour.RED: 1>", "Colour"),
        ({"a": Colour.RED}, "state['a']", "Colour"),
        (Word.YES, "state", "Word"),
        (Point(1, 2), "state", "Point"),
        (OrderedDict(), "state", "collections.OrderedDict"),
        (defaultdict(list), "state", "collections.defaultdict"),
        (bytearray(b"x"), "state", "builtins.bytearray"),
        (range(3), "state", "builtins.range"),
        ({frozenset({range(3)})}, "state{frozenset({range(0, 3)})}{range(0, 3)}", "builtins.range"),
        (lambda: None, "state", "builtins.function"),
        ({"e": ValueError("x")}, "state['e']", "builtins.ValueError"),
        (datetime, "state", "builtins.type"),
    ],
    ids=lambda v: None,
)
def test_anything_else_is_refused_with_its_place_and_type(value: Any, place: str, found: str) -> None:
    """Subclasses too: they would come back as something else."""
    with pytest.raises(UnsupportedStateError) as caught:
        encode_state(value)
    assert f"Expected {place} to be one of None, bool, int" in str(caught.value)
    assert found in str(caught.value)


def test_zone_that_has_no_name_is_refused_with_its_place_and_type() -> None:
    for value in (datetime(2026, 1, 1, tzinfo=OddZone()), time(1, tzinfo=OddZone())):
        with pytest.raises(UnsupportedStateError, match=r"state\['at'\].*OddZone.*astimezone"):
            encode_state({"at": value})


def test_place_begins_with_the_given_name() -> None:
    with pytest.raises(UnsupportedStateError, match=r"Expected cursor\[0\]"):
        encode_state([object()], "cursor")


def test_value_that_holds_itself_is_refused() -> None:
    ring: list[Any] = []
    ring.append({"ring": ring})
    with pytest.raises(UnsupportedStateError, match="does not contain itself"):
        encode_state(ring)


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: (v,), lambda v: {"k": v}], ids=["list", "tuple", "dict"])
def test_nesting_is_limited_and_what_is_within_comes_back(wrap: Any) -> None:
    value: Any = 0
    for _ in range(MAX_DEPTH):
        value = wrap(value)
    assert through_json(value) == value
    with pytest.raises(UnsupportedStateError, match=f"at most {MAX_DEPTH} deep"):
        encode_state(wrap(value))


def test_value_is_not_changed_by_saving_it() -> None:
    value = {"a": [1, {2}], "b": (3,)}
    encode_state(value)
    assert value == {"a": [1, {2}], "b": (3,)}


@pytest.mark.parametrize(
    "encoded",
    [
        {},
        {"date": "2026-01-01"},
        {"$nothing": 1},
        {"$date": "2026-01-01", "$time": 1},
        {"$date": "not a date"},
        {"$date": 5},
        {"$datetime": []},
        {"$datetime": ["2026-01-01T00:00:00", 0, {"zone": "No/Where"}]},
        {"$datetime": ["2026-01-01T00:00:00", 0, {}]},
        {"$time": None},
        {"$timedelta": [10**12, 0, 0]},
        {"$decimal": "x"},
        {"$uuid": 5},
        {"$bytes": "*"},
        {"$str": "/w=="},
        {"$int": "xyz"},
        {"$int": 7},
        {"$float": []},
        {"$set": [[]]},
        {"$tuple": 5},
        {"$dict": [1]},
        {"$dict": [[[], 1]]},
        [{"$date": None}],
    ],
    ids=str,
)
def test_json_that_saving_does_not_make_is_corrupt(encoded: Any) -> None:
    with pytest.raises(CorruptStateError, match="Expected a saved value"):
        decode_state(encoded)


def test_nesting_that_saving_does_not_make_is_corrupt() -> None:
    encoded: Any = 0
    for _ in range(100_000):
        encoded = [encoded]
    with pytest.raises(CorruptStateError, match=f"at most {MAX_DEPTH} deep"):
        decode_state(encoded)
    while encoded:
        encoded = encoded.pop()
