"""Messages survive the trip as JSON, and what is no message is told as such."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, ClassVar

import numpy
import pytest
from hypothesis import given, settings, strategies as st
from pydantic import TypeAdapter

from airflow_provider_statecheck.api.tokens import IssuedToken
from airflow_provider_statecheck.checkpoint import checkpoint_summary, messages, records, store
from airflow_provider_statecheck.checkpoint.codec import (
    LONGEST_TEXT,
    MalformedMessageError,
    decode,
    encode,
    json_parts,
    of_fields,
    require_count,
    storable_text,
)
from airflow_provider_statecheck.checkpoint.messages import AttemptRef, OpenEffects, RegisterAttempt
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, SavepointFormat
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.metadata.tables import Caller

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
TIMES = st.datetimes(timezones=st.just(UTC))
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


# Arguments of a transaction in the same process.
FILTERS = (store.EndedAttempts, store.EndedCheckpoints)


def _classes() -> list[type[Any]]:
    found: list[type[Any]] = [
        kind
        for module in (messages, records, checkpoint_summary, store)
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if is_dataclass(kind) and kind.__module__ == module.__name__ and kind not in FILTERS
    ]
    return [*found, Caller, IssuedToken]


CLASSES = _classes()
st.register_type_strategy(str, TEXTS)
st.register_type_strategy(datetime, TIMES)
st.register_type_strategy(float, NUMBERS)
st.register_type_strategy(
    CheckpointProperties,
    st.builds(CheckpointProperties, savepoint_format=st.sampled_from(SavepointFormat), force=st.booleans()),
)


def test_the_classes_are_found() -> None:
    assert {AttemptRef, RegisterAttempt, CheckpointRecord, store.JobView} <= set(CLASSES)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_message_comes_back_equal(kind: type[Any]) -> None:
    @given(st.builds(kind))
    @settings(max_examples=25, deadline=None, database=None)
    def comes_back(message: Any) -> None:
        assert decode(kind, json.loads(json.dumps(encode(message)))) == message

    comes_back()


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_what_a_newer_version_adds_is_ignored(kind: type[Any]) -> None:
    @given(st.builds(kind))
    @settings(max_examples=10, deadline=None, database=None)
    def is_ignored(message: Any) -> None:
        sent = _with_more(encode(message))
        assert decode(kind, sent) == message

    is_ignored()


def _with_more(sent: Any) -> Any:
    return {**sent, "added_later": {"deep": [1, None]}}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_data_of_any_other_form_are_a_value_error(kind: type[Any]) -> None:
    anything = st.recursive(
        st.none() | st.booleans() | st.integers() | NUMBERS | TEXTS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names(kind), inner, max_size=9),
        max_leaves=12,
    )

    @given(anything)
    @settings(max_examples=20, deadline=None, database=None)
    def is_refused_or_read(data: Any) -> None:
        try:
            message = decode(kind, data)
        except ValueError:
            return
        assert isinstance(data, dict)
        assert isinstance(message, kind)

    is_refused_or_read()


def _names(kind: type[Any]) -> st.SearchStrategy[str]:
    return st.sampled_from([each.name for each in fields(kind)]) | TEXTS


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    number: int = 0


@dataclass(frozen=True)
class AllForms:
    number: int = 0
    ratio: float = 0.0
    text: str = ""
    flag: bool = False
    time: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    colour: Colour = Colour.RED
    maybe: int | None = None
    inner: Inner = Inner()
    many: tuple[Inner, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    counts: dict[str, int] = field(default_factory=dict)


@pytest.mark.parametrize(
    "data",
    [
        None,
        "",
        "text",
        [],
        ["number"],
        7,
        {"number": "1"},
        {"number": 1.5},
        {"number": True},
        {"number": None},
        {"ratio": "1"},
        {"ratio": True},
        {"ratio": 10**400},
        {"text": 1},
        {"flag": 1},
        {"time": "yesterday"},
        {"time": 5},
        {"colour": "blue"},
        {"colour": []},
        {"maybe": "x"},
        {"inner": None},
        {"inner": "number"},
        {"inner": []},
        {"many": "ab"},
        {"many": {"number": 1}},
        {"many": [1]},
        {"pairs": ["ab"]},
        {"pairs": [["a"]]},
        {"pairs": [["a", "b", "c"]]},
        {"counts": [["a", 1]]},
        {"counts": {"a": "1"}},
        {"counts": "ab"},
    ],
)
def test_a_field_of_another_form_is_named(data: Any) -> None:
    with pytest.raises(MalformedMessageError, match=r"^Expected ") as raised:
        decode(AllForms, data)
    assert raised.value.path[:1] == (tuple(data) if isinstance(data, dict) else ())


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"many": [{}, {"number": "secret"}]}, "Expected a whole number in many.1.number"),
        ({"pairs": [["a", "secret", "c"]]}, "Expected a list of 2 in pairs.0"),
        ({"counts": {"rows": "secret"}}, "Expected a whole number in counts.rows"),
        ({"colour": "secret"}, "Expected one of 'red' in colour"),
        ("secret", "Expected an object in the message"),
    ],
)
def test_the_place_of_what_is_wrong_is_named_and_its_value_is_not(data: Any, said: str) -> None:
    with pytest.raises(MalformedMessageError) as raised:
        decode(AllForms, data)
    assert str(raised.value) == said


def test_missing_fields_take_their_defaults() -> None:
    assert decode(AllForms, {}) == AllForms()
    assert decode(AllForms, {"ratio": 1, "maybe": None}) == AllForms(ratio=1.0)


def test_a_missing_field_without_default_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="epoch"):
        decode(AttemptRef, {"job_id": "a", "operator_id": "b"})


@dataclass(frozen=True)
class Renamed:
    inner: tuple[Inner, ...] = field(metadata={"alias": "parts"})
    uid: str = ""


def test_a_renamed_field_keeps_its_key_in_json() -> None:
    renamed = Renamed((Inner(1),), uid="load")
    stored = {"parts": [{"number": 1}], "uid": "load"}
    assert encode(renamed) == stored
    assert decode(Renamed, stored) == renamed
    assert json.loads("".join(json_parts(renamed))) == stored


def test_a_reply_of_the_api_has_the_keys_of_the_codec() -> None:
    restored = CheckpointProperties.for_unclaimed_snapshot("load")
    assert encode(restored)["part"] == "load"
    assert TypeAdapter(CheckpointProperties).dump_python(restored, mode="json", by_alias=True) == encode(restored)


def test_an_error_names_a_renamed_field_by_its_key() -> None:
    with pytest.raises(MalformedMessageError, match="a value in parts"):
        decode(Renamed, {"inner": []})
    with pytest.raises(MalformedMessageError, match=r"parts\.0\.number"):
        decode(Renamed, {"parts": [{"number": "one"}]})


def test_fields_of_a_row_are_given_by_their_keys() -> None:
    assert of_fields(Renamed, {"parts": (Inner(1),)}) == Renamed((Inner(1),))
    with pytest.raises(TypeError):
        of_fields(Renamed, {"parts": 1})


def test_a_text_is_no_empty_answer() -> None:
    with pytest.raises(MalformedMessageError, match="an object in the message"):
        decode(OpenEffects, "everything is well")


def test_a_list_of_messages_and_a_plain_value_are_read_too() -> None:
    assert decode(tuple[Inner, ...], [{"number": 1}]) == (Inner(1),)
    assert decode(dict[str, int], {"a": 1}) == {"a": 1}


@dataclass(frozen=True)
class Circle:
    TAG: ClassVar[str] = "circle"
    radius: int


@dataclass(frozen=True)
class Picture:
    TAG: ClassVar[str] = "picture"
    data: bytes


Shapes = dict[int, Circle | Picture]


def test_alternatives_bytes_and_numbered_keys_come_back_equal() -> None:
    shapes = {2: Circle(1), 10: Picture(b"\x00\xff")}
    assert decode(Shapes, json.loads(json.dumps(encode(shapes)))) == shapes


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"1": {"kind": "line"}}, "Expected an object whose kind is one of 'circle', 'picture' in 1"),
        ({"1": {"radius": 1}}, "Expected an object whose kind is one of 'circle', 'picture' in 1"),
        ({"1": None}, "Expected an object whose kind is one of 'circle', 'picture' in 1"),
        ({"1": {"kind": "picture", "data": "*"}}, "Expected bytes as base64 in 1.data"),
        ({"one": {"kind": "circle", "radius": 1}}, "Expected a whole number in the message"),
    ],
)
def test_what_is_none_of_the_alternatives_is_told(data: Any, said: str) -> None:
    with pytest.raises(MalformedMessageError) as raised:
        decode(Shapes, data)
    assert str(raised.value) == said


def test_a_count_may_be_an_integer_of_numpy() -> None:
    assert [type(require_count("every", number)) for number in (5, numpy.int64(5), numpy.uint8(5))] == [int] * 3


@pytest.mark.parametrize("value", [True, numpy.bool_(True), 1.0, numpy.float64(1), "1", numpy.int64(0), None])
def test_a_count_is_a_whole_number_of_at_least_1(value: object) -> None:
    with pytest.raises(InvalidConfigurationError, match="every to be a whole number of at least 1"):
        require_count("every", value)


def test_a_long_text_keeps_its_start_and_its_end() -> None:
    shown = storable_text("RuntimeError: " + "frame\0" * 1000 + "the disk is full")
    assert len(shown) == LONGEST_TEXT
    assert shown.startswith("RuntimeError: frame\N{REPLACEMENT CHARACTER}")
    assert shown.endswith("the disk is full")
    assert storable_text("short") == "short"
