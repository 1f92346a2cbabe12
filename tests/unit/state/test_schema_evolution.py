"""Types of state in checkpoint metadata: as JSON and back, and verdicts on them from the schemas alone."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from typing import Annotated, Any

import pyarrow as pa
import pytest

from airflow_provider_statecheck.exceptions import CorruptStateError, IncompatibleCheckpointError, StateMigrationError
from airflow_provider_statecheck.state.descriptors import StateKind
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.state.schema_evolution import (
    Fate,
    OperatorSchemas,
    StateSchema,
    Verdict,
    as_written,
    decode_schemas,
    encode_schemas,
    loses_nothing,
    report,
    require_compatible,
    schema_of_all,
    verdicts,
)
from airflow_provider_statecheck.state.serializers.record_serializer import Aliases
from airflow_provider_statecheck.state.serializers.resolve import serializer_of
from airflow_provider_statecheck.state.serializers.serializer import SerializerSnapshot, decode_snapshot
from tests.unit.state.serializers.record_types import Colour, Renamed
from tests.unit.state.serializers.test_custom_serializers import SketchSerializer
from tests.unit.state.serializers.test_round_trips import EVERY_TYPE, TYPES
from tests.unit.state.serializers.test_type_evolution import (
    Added,
    AddedWithoutDefault,
    NewKey,
    NoneReplaced,
    Old,
    OldKey,
    OtherType,
    Reordered,
)

UNKNOWN = SerializerSnapshot(class_id="of the future", version=7, config={"a": [1, None]})


def travelled(schemas: OperatorSchemas) -> OperatorSchemas:
    return decode_schemas(json.loads(json.dumps(encode_schemas(schemas), allow_nan=False)))


def schemas(value: SerializerSnapshot) -> OperatorSchemas:
    text = serializer_of(str).snapshot()
    return OperatorSchemas(
        key=text,
        keyed=(
            StateSchema(name="v", kind=StateKind.VALUE, value=value, ttl_ms=5),
            StateSchema(name="m", kind=StateKind.MAP, key=text, value=value),
        ),
        operator=(StateSchema(name="l", kind=StateKind.LIST, value=value),),
    )


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


def state(
    type_: Any, name: str = "s", kind: StateKind = StateKind.VALUE, key: Any = None, ttl: bool = False
) -> StateSchema:
    snapshot = type_ if isinstance(type_, SerializerSnapshot) else serializer_of(type_).snapshot()
    keys = None if key is None else serializer_of(key).snapshot()
    return StateSchema(name=name, kind=kind, key=keys, value=snapshot, ttl_ms=1000 if ttl else None)


def keyed(*states: StateSchema, key: Any = None) -> OperatorSchemas:
    return OperatorSchemas(key=key, keyed=states)


def fate(old: StateSchema, new: StateSchema) -> Verdict:
    (verdict,) = verdicts(travelled(keyed(old)), travelled(keyed(new)))
    assert verdicts(OperatorSchemas(operator=(old,)), OperatorSchemas(operator=(new,)))[0].fate is verdict.fate
    return verdict


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (Old, Old, Fate.AS_IS),
        (Old, Reordered, Fate.RECONFIGURED),
        (Old, Added, Fate.MIGRATED),
        (Old, NoneReplaced, Fate.MIGRATED),
        (Old, AddedWithoutDefault, Fate.INCOMPATIBLE),
        (int, Colour, Fate.INCOMPATIBLE),
    ],
    ids=str,
)
def test_the_verdict_is_that_of_the_serializers_without_any_class(old: Any, new: Any, expected: Fate) -> None:
    assert fate(state(old), state(new)).fate is expected


def test_a_state_that_is_new_and_one_that_nobody_asks_for_are_no_trouble() -> None:
    found = require_compatible(
        keyed(state(int, "gone"), state(int, "same")), keyed(state(int, "same"), state(str, "new"))
    )
    assert {verdict.name: verdict.fate for verdict in found} == {
        "gone": Fate.RETAINED,
        "same": Fate.AS_IS,
        "new": Fate.NEW,
    }


def test_keyed_and_operator_state_of_one_name_are_two_states() -> None:
    old = OperatorSchemas(keyed=(state(int),), operator=(state(str, kind=StateKind.LIST),))
    assert {(v.scope, v.fate) for v in verdicts(old, old)} == {("keyed", Fate.AS_IS), ("operator", Fate.AS_IS)}


def test_another_kind_of_state_is_incompatible() -> None:
    verdict = fate(state(int), state(int, kind=StateKind.REDUCING))
    assert (verdict.fate, verdict.reason) == (Fate.INCOMPATIBLE, "was a value state, is now a reducing state")


@pytest.mark.parametrize(("before", "after"), [(False, True), (True, False)])
def test_a_time_to_live_may_begin_and_end(before: bool, after: bool) -> None:
    verdict = fate(state(int, ttl=before), state(int, ttl=after))
    assert verdict.fate is Fate.MIGRATED
    assert "time to live" in verdict.reason
    assert fate(state(int, ttl=before), state(str, ttl=after)).fate is Fate.INCOMPATIBLE
    assert fate(state(int, ttl=before), state(int, ttl=before)).fate is Fate.AS_IS


def test_keys_of_a_map_may_be_widened_but_not_merged() -> None:
    def map_of(key: Any) -> StateSchema:
        return state(int, kind=StateKind.MAP, key=key)

    assert fate(map_of(pa.int32()), map_of(int)).fate is Fate.MIGRATED
    assert fate(map_of(OldKey), map_of(NewKey)).fate is Fate.INCOMPATIBLE
    assert fate(map_of(int), map_of(str)).fate is Fate.INCOMPATIBLE


def test_reordered_fields_are_written_as_before_by_all_subtasks() -> None:
    old = state(Old, kind=StateKind.MAP, key=Old)
    new = state(Reordered, kind=StateKind.MAP, key=Reordered)
    (written,) = as_written([old], [new])
    columns = [field["name"] for field in written.value.config["fields"]]
    assert columns == [field["name"] for field in old.value.config["fields"]]
    assert written.key == written.value


def test_migrated_and_new_states_are_written_in_their_new_types() -> None:
    old, new = (state(Old), state(int, "same")), (state(Added), state(int, "same"), state(str, "new"))
    assert as_written(old, new) == new


@dataclass
class OptionalAdded:
    id: int
    count: int
    name: str | None
    size: int | None


@dataclass
class RenamedCount:
    id: int
    total: Annotated[int, Aliases("count")]
    name: str | None


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [(Old, OptionalAdded), (Old, RenamedCount), (pa.int32(), pa.int64()), (int, int | None)],
    ids=["added", "renamed", "widened", "optional"],
)
def test_rows_of_two_releases_are_read_in_the_types_that_have_all_fields(narrow: Any, wide: Any) -> None:
    a, b = state(narrow), state(wide)
    assert schema_of_all([a, a, b]) == schema_of_all([b, a]) == b
    assert loses_nothing(a, b)


def test_rows_lose_no_field_and_no_time_of_their_last_use() -> None:
    assert not loses_nothing(state(OptionalAdded), state(Old))
    assert not loses_nothing(state(int), state(str))
    assert not loses_nothing(state(Old), state(Added)), "only the class has the default of the new field"
    assert not loses_nothing(state(int, ttl=True), state(int))
    assert loses_nothing(state(int), state(int, ttl=True))
    assert schema_of_all([state(int), state(int, ttl=True)]) == state(int)


def key_of(**columns: pa.DataType) -> SerializerSnapshot:
    return KeySerializer(tuple(KeyField(name, kind) for name, kind in columns.items())).snapshot()


def test_a_key_never_migrates() -> None:
    old = keyed(state(int), key=key_of(id=pa.int32()))
    assert verdicts(old, keyed(state(int), key=key_of(id=pa.int32())))[0].fate is Fate.AS_IS
    for key in (key_of(id=pa.int64()), key_of(id=pa.int32(), day=pa.date32()), serializer_of(int).snapshot()):
        verdict, _ = verdicts(old, keyed(state(int), key=key))
        assert (verdict.scope, verdict.fate) == ("key", Fate.INCOMPATIBLE)
        assert "key" in verdict.reason


def test_a_key_of_another_description_may_be_reconfigured_but_never_migrated() -> None:
    def of(type_: Any) -> OperatorSchemas:
        return keyed(key=serializer_of(type_).snapshot())

    assert verdicts(of(Old), of(Reordered))[0].fate is Fate.RECONFIGURED
    assert verdicts(of(pa.int32()), of(int))[0].fate is Fate.INCOMPATIBLE


def test_the_error_names_every_state_with_its_types_before_and_now() -> None:
    old = keyed(state(int, "total"), state(Old, "orders"), state(int, "fine"))
    new = keyed(state(str, "total"), state(OtherType, "orders"), state(int, "fine"))
    with pytest.raises(StateMigrationError) as caught:
        require_compatible(old, new, "sales/balance")
    text = str(caught.value)
    assert "keyed state 'total': incompatible: was int64, is now string" in text
    assert "[value of int64 -> value of string]" in text
    assert "record(id int64, count int64, name optional string) -> value of record(id int64, count string, name" in text
    assert "'sales/balance'" in text
    assert "fine" not in text
    assert caught.value.state == "total"
    assert pickle.loads(pickle.dumps(caught.value)).state == "total"


def test_a_class_that_nobody_knows_is_an_error_only_where_its_state_is_asked_for() -> None:
    unknown = SerializerSnapshot(class_id="quantum", version=1, config={})
    assert fate(state(unknown), state(int)).fate is Fate.INCOMPATIBLE
    assert "quantum" in fate(state(unknown), state(int)).line
    found = require_compatible(keyed(state(unknown, "theirs"), state(int, "mine")), keyed(state(int, "mine")))
    assert [verdict.fate for verdict in found] == [Fate.RETAINED, Fate.AS_IS]


def test_a_newer_version_is_an_error_only_where_its_state_is_asked_for() -> None:
    newer = SerializerSnapshot(class_id="record", version=99, config={"columns": {}})
    verdict = fate(state(newer), state(Old))
    assert verdict.fate is Fate.INCOMPATIBLE
    assert "found version 99" in verdict.reason
    require_compatible(keyed(state(newer, "theirs")), keyed(state(int, "mine")))


def test_on_a_serializer_of_the_users_own_its_code_decides_later() -> None:
    same = fate(state(SketchSerializer(1)), state(SketchSerializer(1)))
    assert (same.fate, same.reason) == (Fate.AS_IS, "")
    other = fate(state(SketchSerializer(1)), state(SketchSerializer(2)))
    assert other.fate is Fate.AS_IS
    assert "its own code decides" in other.reason


def test_the_report_is_lines_of_a_log_with_what_needs_a_look_first() -> None:
    old = OperatorSchemas(
        key=key_of(id=pa.int64()),
        keyed=(state(int, "same"), state(Old, "orders"), state(int, "gone"), state(int, "bad")),
    )
    new = OperatorSchemas(
        key=key_of(id=pa.int64()),
        keyed=(state(int, "same"), state(Added, "orders"), state(float, "bad")),
        operator=(state(int, "buffer", StateKind.LIST),),
    )
    assert report(verdicts(old, new)).splitlines() == [
        (
            "keyed state 'bad': incompatible: was int64, is now double, which cannot represent every int64 value "
            "[value of int64 -> value of double]"
        ),
        (
            "keyed state 'orders': migrated: field tags: is new; field note: is new [value of record(id int64, count "
            "int64, name optional string) -> value of record(id int64, count int64, name optional string, tags list "
            "of string, note optional string)]"
        ),
        "keyed state 'gone': retained, unused [value of int64]",
        "operator state 'buffer': new [list of int64]",
        "key: as is [key(id bigint)]",
        "keyed state 'same': as is [value of int64]",
    ]
