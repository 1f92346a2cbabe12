"""What a checkpoint says about the types of its state, as JSON and back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import CorruptStateError, IncompatibleCheckpointError
from airflow_provider_statecheck.state.descriptors import StateKind
from airflow_provider_statecheck.state.schemas import OperatorSchemas, StateSchema, decode_schemas, encode_schemas
from airflow_provider_statecheck.state.serializers.resolve import serializer_of
from airflow_provider_statecheck.state.serializers.serializer import SerializerSnapshot, decode_snapshot
from tests.unit.state.serializers.record_types import Renamed
from tests.unit.state.serializers.test_round_trips import EVERY_TYPE, TYPES

UNKNOWN = SerializerSnapshot(class_id="of the future", version=7, config={"a": [1, None]})


def schemas(value: SerializerSnapshot) -> OperatorSchemas:
    text = serializer_of(str).snapshot()
    return OperatorSchemas(
        key=text,
        keyed=(
            StateSchema(name="v", kind=StateKind.VALUE, value=value, ttl=True, ttl_ms=5),
            StateSchema(name="m", kind=StateKind.MAP, key=text, value=value),
        ),
        operator=(StateSchema(name="l", kind=StateKind.LIST, value=value),),
    )


def travelled(written: OperatorSchemas) -> OperatorSchemas:
    return decode_schemas(json.loads(json.dumps(encode_schemas(written), allow_nan=False)))


@EVERY_TYPE
def test_every_type_comes_back_equal(name: str) -> None:
    written = schemas(serializer_of(TYPES[name][0]).snapshot())
    assert travelled(written) == written


def test_a_queryable_name_comes_back_and_another_one_describes_the_same_state() -> None:
    value = serializer_of(int).snapshot()
    named, renamed = (StateSchema(name="v", kind=StateKind.VALUE, value=value, queryable_name=n) for n in ("a", None))

    found = travelled(OperatorSchemas(keyed=(named, renamed))).keyed

    assert [each.queryable_name for each in found] == ["a", None]
    assert named == renamed


def test_schemas_of_earlier_releases_have_no_queryable_name() -> None:
    encoded = encode_schemas(schemas(UNKNOWN))
    for state in (*encoded["keyed"], *encoded["operator"]):
        del state["queryable_name"]

    assert [each.queryable_name for each in decode_schemas(encoded).keyed] == [None, None]


def test_an_operator_without_state_comes_back() -> None:
    assert travelled(OperatorSchemas()) == OperatorSchemas()


def test_aliases_and_defaults_are_kept_for_a_verdict_without_the_class() -> None:
    assert serializer_of(Renamed).snapshot().config["fields"] == [
        {
            "name": "name",
            "type": {"class_id": "arrow", "version": 1, "config": {"type": "string"}},
            "aliases": ["title", "caption"],
        },
        {
            "name": "size",
            "type": {"class_id": "arrow", "version": 1, "config": {"type": "int64"}},
            "aliases": ["length"],
            "default": True,
        },
    ]


def test_a_class_that_nobody_knows_here_is_no_error_before_its_state_is_used() -> None:
    assert travelled(schemas(UNKNOWN)) == schemas(UNKNOWN)


@pytest.mark.parametrize("version", [2, 0, "1", None])
def test_another_version_is_refused_with_its_number(version: Any) -> None:
    encoded = encode_schemas(OperatorSchemas()) | {"version": version}
    with pytest.raises(IncompatibleCheckpointError, match=f"of version 1, found {version!r}"):
        decode_schemas(encoded)


@pytest.mark.parametrize(
    "encoded",
    [
        {},
        None,
        {"version": 1, "key": None, "keyed": [{}], "operator": []},
        {"version": 1, "key": None, "keyed": None, "operator": []},
        {"version": 1, "key": 3, "keyed": [], "operator": []},
        {"version": 1, "key": {"class_id": 1, "version": 1, "config": {}}, "keyed": [], "operator": []},
    ],
    ids=str,
)
def test_other_json_is_corrupt(encoded: Any) -> None:
    with pytest.raises(CorruptStateError):
        decode_schemas(encoded)


def test_an_unknown_kind_of_state_is_corrupt() -> None:
    encoded = encode_schemas(schemas(UNKNOWN))
    encoded["operator"][0]["kind"] = "stack"
    with pytest.raises(CorruptStateError):
        decode_schemas(encoded)


@pytest.mark.parametrize("encoded", [{}, [], None, {"class_id": "a", "version": "1", "config": {}}], ids=str)
def test_a_snapshot_of_other_json_is_corrupt(encoded: Any) -> None:
    with pytest.raises(CorruptStateError):
        decode_snapshot(encoded)
