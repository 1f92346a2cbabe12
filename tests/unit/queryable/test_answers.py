"""A reply reaches the client with equal values of equal types, and is readable on the way."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from airflow_provider_statecheck.exceptions import CoordinatorError, UnsupportedStateError
from airflow_provider_statecheck.queryable import answers
from airflow_provider_statecheck.queryable.answers import decode_reply, encode_entries, first_rows, json_column
from airflow_provider_statecheck.queryable.json_values import json_of
from airflow_provider_statecheck.queryable.queries import ABSENT, JsonUserKey
from airflow_provider_statecheck.state.descriptors import StateKind
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.state.serializers.resolve import restored_user_keys, serializer_of
from tests import key_values
from tests.soak import every_nth
from tests.unit.queryable.replies import as_served, encoded, reply_of, sent, served_user_keys
from tests.unit.state.serializers.record_types import Frozen, Point
from tests.unit.state.serializers.test_round_trips import DATETIMES, EVERY_TYPE, INT64, TEXT, TYPES as STORED_TYPES


def has_readable_offset(at: datetime) -> bool:
    # datetime.fromisoformat() of Python 3.11 reads an offset below one second as UTC.
    offset = at.utcoffset()
    return not offset or abs(offset) >= timedelta(seconds=1)


TYPES = STORED_TYPES | {"datetime": (datetime, DATETIMES.filter(has_readable_offset))}


def served_json(value_type: Any, value: Any) -> Any:
    reply = reply_of(StateKind.VALUE, value_type, as_served(value_type, [value]))
    return encoded(reply)["entries"][0]["value"]


@EVERY_TYPE
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_a_value_of_every_type_arrives_equal(name: str, data: st.DataObject) -> None:
    wanted, strategy = TYPES[name]
    reply = reply_of(StateKind.VALUE, wanted, as_served(wanted, data.draw(st.lists(strategy, max_size=4))))
    back = sent(reply)
    assert back == reply
    assert [*map(type, back.values)] == [*map(type, reply.values)]


@EVERY_TYPE
@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_a_list_of_every_type_arrives_equal(name: str, data: st.DataObject) -> None:
    wanted, strategy = TYPES[name]
    elements = as_served(wanted, data.draw(st.lists(strategy, max_size=4)))
    reply = reply_of(StateKind.LIST, wanted, ([*elements], [], ABSENT))
    assert sent(reply) == reply


HASHABLE = {
    name: TYPES[name]
    for name in TYPES
    if name not in ("list", "list of optional", "set", "struct", "map", "dataclass", "nested", "aliases")
    and not name.startswith("dict")
}


@pytest.mark.parametrize("name", every_nth(HASHABLE, 2))
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_a_map_with_user_keys_of_every_hashable_type_arrives_equal(name: str, data: st.DataObject) -> None:
    wanted, strategy = HASHABLE[name]
    user_keys = served_user_keys(wanted, data.draw(st.lists(strategy, max_size=4)))
    entries = {key: data.draw(st.none() | INT64) for key in user_keys}
    reply = reply_of(StateKind.MAP, int, (entries, ABSENT), user_key_type=wanted)
    back = sent(reply)
    assert back == reply
    assert [*back.values[0].items()] == [*entries.items()]


def test_none_as_user_key_is_not_the_text_null() -> None:
    entries = {None: 1, "null": 2, "a": 3}
    reply = reply_of(StateKind.MAP, int, (entries,), user_key_type=str | None)
    assert encoded(reply)["entries"][0]["value"] == [[None, 1], ["null", 2], ["a", 3]]
    assert sent(reply).values == (entries,)


@pytest.mark.parametrize("value", [3, None, ABSENT])
def test_one_entry_of_a_map_is_its_value_and_none_differs_from_absent(value: Any) -> None:
    reply = reply_of(StateKind.MAP, int, (value,), user_key_type=str, is_entry=True)
    assert sent(reply).values == (value,)


@pytest.mark.parametrize("name", key_values.TYPES)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_a_key_of_every_type_arrives_in_normal_form(name: str, data: st.DataObject) -> None:
    keys = KeySerializer((KeyField("k", key_values.TYPES[name]), KeyField("n", pa.int32())))
    drawn = data.draw(st.lists(key_values.STRATEGIES[name], max_size=4))
    names = tuple(keys.normalized((each, i)) for i, each in enumerate(drawn))
    reply = reply_of(StateKind.VALUE, int, (1,) * len(names), keys=keys, names=names)
    assert repr(sent(reply).keys) == repr(names)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), -0.0, 5e-324, 0.1])
def test_every_float_arrives_as_itself(value: float) -> None:
    reply = reply_of(StateKind.VALUE, float, (value,))
    assert repr(sent(reply).values) == repr((value,))


@pytest.mark.parametrize("zone", ["Europe/Berlin", "+02:00", "America/St_Johns"])
@given(at=st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001
@settings(max_examples=20, deadline=None)
def test_an_instant_arrives_with_the_time_zone_of_its_column(zone: str, at: datetime) -> None:
    wanted = pa.timestamp("us", tz=zone)
    (value,) = as_served(wanted, [at])
    (back,) = sent(reply_of(StateKind.VALUE, wanted, (value,))).values
    assert (back, str(back), back.fold) == (value, str(value), value.fold)


@pytest.mark.parametrize(
    ("wanted", "value", "shown"),
    [
        (int, 2**63 - 1, 2**63 - 1),
        (float, 1.5, 1.5),
        (float, float("-inf"), "-Infinity"),
        (bool, True, True),
        (str, "grüße", "grüße"),
        (bytes, b"\x00\xff", "AP8="),
        (pa.decimal128(9, 2), Decimal("-12.50"), "-12.50"),
        (Decimal, Decimal("1E-18"), "0.000000000000000001"),
        (timedelta, -timedelta(days=1, microseconds=5), "-PT86400.000005S"),
        (timedelta, timedelta(minutes=2), "PT120S"),
        (
            datetime,
            datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
            "2026-10-25T02:30:00+01:00[Europe/Berlin][fold=1]",
        ),
        (datetime, datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=2))), "2026-01-01T00:00:00+02:00"),
        (pa.timestamp("us", tz="UTC"), datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00+00:00"),
        (UUID, UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Point, Point(1, "a"), {"x": 1, "label": "a"}),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (dict[int, str], {1: "a"}, [[1, "a"]]),
        (dict[Point, int], {Point(1): 2}, [[{"x": 1, "label": None}, 2]]),
        (set[Frozen], {Frozen("a", Point(1))}, [{"sku": "a", "at": {"x": 1, "label": None}}]),
    ],
)
def test_the_json_of_a_value_is_what_a_reader_expects(wanted: Any, value: Any, shown: Any) -> None:
    assert served_json(wanted, value) == shown


def test_a_key_without_state_is_marked_and_a_key_of_two_columns_is_a_list() -> None:
    keys = KeySerializer((KeyField("user", pa.string()), KeyField("day", pa.date32())))
    names = (keys.normalized(("a", datetime(2026, 1, 1, tzinfo=UTC).date())),)
    data = encoded(reply_of(StateKind.VALUE, int, (ABSENT,), keys=keys, names=names))
    assert data["entries"] == [{"key": ["a", "2026-01-01"], "absent": True}]


def test_unknown_fields_of_a_newer_server_are_ignored() -> None:
    reply = reply_of(StateKind.VALUE, Point, ({"x": 1, "label": None},))
    data = encoded(reply)
    entry = data["entries"][0]
    newer = {**entry, "value": {**entry["value"], "colour": "red"}, "since": 3}
    assert decode_reply({**data, "entries": [newer], "region": "eu"}) == reply


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda data: data.pop("checkpoint_id"), "checkpoint_id"),
        (lambda data: data.pop("types"), "types"),
        (lambda data: data["types"].pop("key"), "types"),
        (lambda data: data["types"].update(key=None), "types"),
        (lambda data: data["types"].update(keyed=[]), "types"),
        (lambda data: data.update(entries={}), "a list in entries"),
        (lambda data: data["entries"].append(3), "entries.1"),
        (lambda data: data["entries"][0].pop("value"), "entries.0"),
        (lambda data: data["entries"][0].update(key=3), "entries.0.key"),
        (lambda data: data["entries"][0]["value"].pop("x"), "entries.0.value.x"),
        (lambda data: data["entries"][0]["value"].update(x="1"), "a whole number in entries.0.value.x"),
        (lambda data: data["entries"][0]["value"].update(x=True), "entries.0.value.x"),
    ],
)
def test_malformed_data_is_an_error_that_names_the_field(change: Any, named: str) -> None:
    data = json.loads(json.dumps(encoded(reply_of(StateKind.VALUE, Point, ({"x": 1, "label": None},)))))
    change(data)
    with pytest.raises(CoordinatorError, match=named):
        decode_reply(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


@EVERY_TYPE
@given(value=JSON)
@settings(max_examples=40, deadline=None)
def test_any_json_in_place_of_a_value_is_decoded_or_refused(name: str, value: Any) -> None:
    data = encoded(reply_of(StateKind.VALUE, TYPES[name][0], ()))
    with suppress(CoordinatorError):
        decode_reply({**data, "entries": [{"key": "a", "value": value}]})


def test_an_entry_is_encoded_when_it_is_taken() -> None:
    entries = encode_entries(reply_of(StateKind.LIST, int, ([1, 2], "no list")))
    assert next(entries) == {"key": "user-0", "value": [1, 2]}


def test_replies_from_two_checkpoints_do_not_share_what_describes_them() -> None:
    reply = reply_of(StateKind.VALUE, int, (1,))
    later = replace(reply, checkpoint_id=reply.checkpoint_id + 1, pointer="later", completed_at=None)
    assert [sent(each).checkpoint_id for each in (reply, later)] == [reply.checkpoint_id, later.checkpoint_id]
    assert (sent(later).pointer, sent(later).completed_at) == ("later", None)


def test_a_type_of_a_newer_release_is_refused_by_name() -> None:
    reply = reply_of(StateKind.VALUE, int, (1,))
    unknown = replace(reply.schema, value=replace(reply.schema.value, class_id="tensor"))
    with pytest.raises(UnsupportedStateError, match="tensor"):
        encoded(replace(reply, schema=unknown))


@pytest.mark.parametrize("name", every_nth(HASHABLE, 2))
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_a_user_key_whose_type_the_client_does_not_know_arrives_as_the_stored_one(
    name: str, data: st.DataObject
) -> None:
    wanted, strategy = HASHABLE[name]
    value = data.draw(strategy)
    (stored,) = served_user_keys(wanted, [value])
    serializer = restored_user_keys(serializer_of(wanted).snapshot())
    assert JsonUserKey(json.loads(json.dumps(json_of(value)))).decoded(serializer) == stored
    assert JsonUserKey(json_of(value)).decoded(serializer) == stored


PAIR = pa.struct([("a", pa.int64()), ("a", pa.string())])


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.int64(), 1 << 62, 1 << 62),
        (pa.float64(), float("nan"), "NaN"),
        (pa.binary(), b"\x00\xff", "AP8="),
        (pa.decimal128(38, 2), Decimal("1.50"), "1.50"),
        (pa.timestamp("us", "UTC"), datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00+00:00"),
        (pa.date32(), date(2026, 1, 2), "2026-01-02"),
        (pa.duration("us"), timedelta(seconds=90), "PT90S"),
        (pa.list_(pa.list_(pa.float64())), [[float("inf")], None, []], [["Infinity"], None, []]),
        (pa.struct([("x", pa.binary()), ("y", pa.int32())]), {"x": b"a", "y": None}, {"x": "YQ==", "y": None}),
        (pa.map_(pa.string(), pa.int64()), [("a", 1)], {"a": 1}),
        (pa.map_(pa.int64(), pa.date32()), [(1, date(2026, 1, 2))], [[1, "2026-01-02"]]),
    ],
    ids=str,
)
def test_values_have_a_json_form(kind: pa.DataType, value: Any, expected: Any) -> None:
    found = json_column(pa.array([None, value, None], kind)[1:])
    assert found == [expected, None]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_equal_names_of_fields_become_pairs() -> None:
    values = pa.StructArray.from_arrays([pa.array([1]), pa.array(["x"])], fields=list(PAIR))
    assert json_column(values) == [[["a", 1], ["a", "x"]]]


def test_dates_that_python_does_not_have_are_texts_of_arrow() -> None:
    assert json_column(pa.array([-735_500, None], pa.int32()).cast(pa.date32())) == ["-0044-04-09", None]


def batches_of(*sizes: int, read: list[int]) -> Any:
    for number, size in enumerate(sizes):
        read.append(number)
        yield pa.record_batch({"n": list(range(size))})


@pytest.mark.parametrize(("limit", "has_more", "read"), [(2, True, [0]), (3, True, [0, 1]), (7, False, [0, 1, 2])])
def test_rows_are_read_up_to_the_limit(limit: int, has_more: bool, read: list[int]) -> None:
    seen: list[int] = []
    found = first_rows(pa.schema([("n", pa.int64())]), batches_of(3, 2, 2, read=seen), limit)
    assert (len(found.rows), found.has_more, seen) == (limit, has_more, read)
    assert found.columns == (("n", "int64"),)


def test_rows_are_read_up_to_the_size() -> None:
    batch = pa.record_batch({"text": ["x" * 100] * 10})
    assert len(first_rows(batch.schema, iter([batch]), 10, max_bytes=350).rows) == 3
    assert len(first_rows(batch.schema, iter([batch]), 10, max_bytes=1).rows) == 1
    assert not first_rows(batch.schema, iter([batch]), 10, max_bytes=10_000).has_more


def test_few_rows_are_converted_beyond_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    converted: list[int] = []

    def counted(values: Any) -> list[Any]:
        converted.append(len(values))
        return json_column(values)

    monkeypatch.setattr(answers, "json_column", counted)
    batch = pa.record_batch({"text": ["x" * 100] * 1000})
    assert len(first_rows(batch.schema, iter([batch]), 900, max_bytes=2500).rows) == 24
    assert sum(converted) < 50
