"""What state survives when its types change, and that it is then what the new types would have written."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from types import GenericAlias
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from airflow_provider_statecheck.exceptions import IncompatibleCheckpointError
from airflow_provider_statecheck.state.serializers.record_serializer import RecordSerializer
from airflow_provider_statecheck.state.serializers.resolve import restored_serializer, serializer_of
from airflow_provider_statecheck.state.serializers.serializer import (
    Compatibility,
    Outcome,
    SerializerSnapshot,
    never_migrated,
)
from tests.unit.state.serializers.test_round_trips import EVERY_TYPE, INT64, TEXT, TYPES

AS_IS, RECONFIGURED, MIGRATION, INCOMPATIBLE = (
    Outcome.COMPATIBLE_AS_IS,
    Outcome.COMPATIBLE_WITH_RECONFIGURED_SERIALIZER,
    Outcome.COMPATIBLE_AFTER_MIGRATION,
    Outcome.INCOMPATIBLE,
)


class One(Enum):
    A = 1
    B = 2


class Appended(Enum):
    A = 10
    B = 20
    C = 30


class Inserted(Enum):
    C = 1
    B = 2
    A = 3


class Removed(Enum):
    A = 1


class RenamedMember(Enum):
    A = 1
    BETTER = 2
    B = 2  # noqa: PIE796 - another name


class Joined(Enum):
    A = 1
    B = 1  # noqa: PIE796 - another name


@dataclass
class Old:
    id: int
    count: int
    name: str | None = None


@dataclass
class Added:
    id: int
    count: int
    name: str | None = None
    tags: list[str] = field(default_factory=lambda: ["new"])
    note: str | None = None


@dataclass
class AddedWithoutDefault:
    id: int
    count: int
    name: str | None
    more: int


@dataclass
class Dropped:
    id: int
    name: str | None


@dataclass
class Reordered:
    count: int
    name: str | None
    id: int


@dataclass
class RenamedField:
    id: int
    total: int = field(metadata={"aliases": ("sum", "count")})
    name: str | None = None


@dataclass
class NotRenamed:
    """``id`` is a name of today, so it is no earlier one of ``other``."""

    id: int
    count: int
    name: str | None = None
    other: int = field(default=7, metadata={"aliases": ("id",)})


@dataclass
class NoneReplaced:
    id: int
    count: int
    name: str = "nobody"


@dataclass
class NoneForbidden:
    id: int
    count: int
    name: str


@dataclass
class MadeOptional:
    id: int | None
    count: int
    name: str | None = None


@dataclass
class OtherType:
    id: int
    count: str
    name: str | None = None


@dataclass
class Everything:
    """Another order, a renamed field, a wider type, an added and a dropped field at once."""

    extra: float = 0.5
    total: Decimal = field(default=Decimal(0), metadata={"aliases": ("count",)})
    id: int = 0


class OldTuple(NamedTuple):
    id: int
    count: int  # type: ignore[assignment] # a tuple has a method of that name
    name: str | None


OLD = st.builds(Old, INT64, INT64, st.none() | TEXT)


def resolve(new: Any, old: Any) -> Compatibility:
    return serializer_of(new).resolve_compatibility(serializer_of(old).snapshot())


def migrate(new: Any, old: Any, values: list[Any]) -> list[Any]:
    """Write with the old type, convert, and read with the new one."""
    written = serializer_of(old).to_arrow([None, *values, None])[1:]
    verdict = resolve(new, old)
    assert verdict.migrate is not None
    converted = verdict.migrate(written)
    converted.validate(full=True)
    assert converted.type == serializer_of(new).arrow_type
    *found, last = serializer_of(new).from_arrow(converted)
    assert last is None
    # The columns are those that the new serializer writes itself, values below nulls aside.
    assert serializer_of(new).to_arrow([*found, None]).equals(converted)
    return found


@EVERY_TYPE
def test_a_type_that_did_not_change_goes_on_as_it_is_also_where_its_snapshot_alone_is_known(name: str) -> None:
    serializer = serializer_of(TYPES[name][0])
    snapshot = serializer.snapshot()
    restored = restored_serializer(snapshot)
    assert (restored.snapshot(), restored.arrow_type) == (snapshot, serializer.arrow_type)
    for each in (serializer, restored):
        verdict = each.resolve_compatibility(snapshot)
        assert (verdict.outcome, verdict.reason, verdict.serializer, verdict.migrate) == (AS_IS, "", None, None)


@EVERY_TYPE
@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_state_is_read_and_written_anew_without_its_classes(name: str, data: st.DataObject) -> None:
    wanted, strategy = TYPES[name]
    array = serializer_of(wanted).to_arrow(data.draw(st.lists(st.none() | strategy, max_size=4)))
    restored = restored_serializer(serializer_of(wanted).snapshot())
    anew = restored.to_arrow(restored.from_arrow(array))
    assert anew.type == array.type
    # Sets have no order, so that columns may differ.
    assert serializer_of(wanted).from_arrow(anew) == serializer_of(wanted).from_arrow(array)


def test_without_their_classes_records_are_dictionaries_and_members_names() -> None:
    serializer = serializer_of(list[Old])
    restored = restored_serializer(serializer.snapshot())
    array = serializer.to_arrow([[Old(1, 2)]])
    assert restored.from_arrow(array) == [[{"id": 1, "count": 2, "name": None}]]
    names = restored_serializer(serializer_of(One).snapshot())
    assert names.from_arrow(serializer_of(One).to_arrow([One.B])) == ["B"]


INTEGERS = {f"{sign}int{bits}": (sign, bits) for sign in ("", "u") for bits in (8, 16, 32, 64)}
LIMITS = {
    name: (0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for name, (sign, bits) in INTEGERS.items()
}
EXACT_FLOAT = {"float": 2**24, "double": 2**53}


@pytest.mark.parametrize("old", INTEGERS)
@pytest.mark.parametrize("new", [*INTEGERS, *EXACT_FLOAT, "decimal128(38, 18)", "decimal128(18, 0)", "string"])
def test_a_number_may_only_become_one_that_holds_all_its_values(old: str, new: str) -> None:
    old_type = getattr(pa, old)()
    low, high = LIMITS[old]
    if new in INTEGERS:
        fits = LIMITS[new][0] <= low and high <= LIMITS[new][1]
    elif new in EXACT_FLOAT:
        fits = high <= EXACT_FLOAT[new]
    else:
        digits = {"decimal128(38, 18)": 20, "decimal128(18, 0)": 18, "string": 0}[new]
        fits = max(-low, high) < 10**digits
    new_type = {"float": pa.float32(), "double": pa.float64(), "string": pa.string()}.get(new)
    new_type = new_type or (
        getattr(pa, new)() if new in INTEGERS else pa.decimal128(38, 18) if "38" in new else pa.decimal128(18, 0)
    )
    expected = AS_IS if old_type == new_type else MIGRATION if fits else INCOMPATIBLE

    verdict = resolve(new_type, old_type)

    assert verdict.outcome is expected, verdict.reason
    if expected is MIGRATION:
        assert migrate(new_type, old_type, [low, high, 0]) == [low, high, 0]


@pytest.mark.parametrize(
    ("old", "new", "values"),
    [
        (pa.float32(), float, [0.5, -1.25, float("inf")]),
        (pa.decimal128(5, 2), Decimal, [Decimal("999.99"), Decimal("-0.01")]),
        (pa.decimal128(5, 2), pa.decimal128(7, 3), [Decimal("999.99")]),
        (pa.string(), pa.large_string(), ["a", ""]),
        (pa.binary(), pa.large_binary(), [b"a", b""]),
    ],
    ids=str,
)
def test_other_types_are_widened_too(old: Any, new: Any, values: list[Any]) -> None:
    assert resolve(new, old).outcome is MIGRATION
    assert migrate(new, old, values) == values
    assert resolve(old, new).outcome is INCOMPATIBLE


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (float, int),
        (int, float),
        (int, bool),
        (str, bytes),
        (str, One),
        (One, str),
        (pa.decimal128(5, 2), pa.decimal128(5, 3)),
        (pa.timestamp("us"), pa.timestamp("us", tz="UTC")),
        (list[int], set[int]),
        (list[int], list[str]),
        (list[int | None], list[int]),
        (dict[str, int], dict[str, str]),
        (dict[str, int], dict[int, int]),
        (Old, OtherType),
        (Old, AddedWithoutDefault),
        (Old, NoneForbidden),
        (Old, int),
        (tuple[int, int], tuple[int, int, int]),
    ],
    ids=str,
)
def test_what_differs_is_incompatible_and_the_reason_says_it(old: Any, new: Any) -> None:
    verdict = resolve(new, old)
    assert verdict.outcome is INCOMPATIBLE
    assert verdict.migrate is None
    assert verdict.reason


def test_the_reason_names_the_place_of_the_difference() -> None:
    reason = resolve(dict[str, list[OtherType]], dict[str, list[Old]]).reason
    assert reason == (
        "value of the dict: element of the list: field count: was int64, is now string, which cannot represent every "
        "int64 value"
    )


@pytest.mark.parametrize("new", [Appended, Inserted], ids=lambda new: new.__name__)
def test_names_of_an_enumeration_may_be_added_in_any_place(new: Any) -> None:
    assert resolve(new, One).outcome is AS_IS
    written = serializer_of(One).to_arrow([One.A, One.B])
    assert serializer_of(new).from_arrow(written) == [new.A, new.B]


def test_a_renamed_member_is_stored_under_its_new_name_from_now_on() -> None:
    verdict = resolve(RenamedMember, One)
    assert (verdict.outcome, verdict.reason) == (MIGRATION, "B becomes BETTER")
    assert migrate(RenamedMember, One, [One.A, One.B]) == [RenamedMember.A, RenamedMember.BETTER]
    assert resolve(RenamedMember, RenamedMember).outcome is AS_IS
    without_class = restored_serializer(serializer_of(RenamedMember).snapshot())
    assert without_class.resolve_compatibility(serializer_of(One).snapshot()).reason == verdict.reason
    assert without_class.to_arrow(["B"]).to_pylist() == ["BETTER"]


def test_members_that_become_one_are_told_apart_nowhere() -> None:
    assert migrate(list[Joined], list[One], [[One.A, One.B]]) == [[Joined.A, Joined.A]]
    for kind in (set, frozenset):
        assert resolve(kind[Joined], kind[One]).outcome is INCOMPATIBLE
    assert "two could become one" in resolve(dict[Joined, int], dict[One, int]).reason


def test_a_name_of_an_enumeration_may_not_be_removed() -> None:
    verdict = resolve(Removed, One)
    assert verdict.outcome is INCOMPATIBLE
    assert verdict.reason.startswith("has no B any more")


@given(values=st.lists(OLD, max_size=5))
@settings(max_examples=40, deadline=None)
def test_an_added_field_gets_its_default_anew_for_each_record(values: list[Old]) -> None:
    found = migrate(Added, Old, values)
    assert found == [Added(v.id, v.count, v.name) for v in values]
    assert len({id(record.tags) for record in found}) == len(found)


@given(values=st.lists(OLD, max_size=5))
@settings(max_examples=40, deadline=None)
def test_a_removed_field_is_dropped(values: list[Old]) -> None:
    assert migrate(Dropped, Old, values) == [Dropped(v.id, v.name) for v in values]
    assert resolve(Dropped, Old).reason == "dropped count"


@given(values=st.lists(OLD, max_size=5))
@settings(max_examples=40, deadline=None)
def test_a_renamed_field_is_found_by_its_alias(values: list[Old]) -> None:
    assert migrate(RenamedField, Old, values) == [RenamedField(v.id, v.count, v.name) for v in values]


def test_a_field_without_alias_or_with_that_of_a_field_of_today_was_not_renamed() -> None:
    @dataclass
    class WithoutAlias:
        id: int
        total: int = 5
        name: str | None = None

    assert migrate(WithoutAlias, Old, [Old(1, 2, "a")]) == [WithoutAlias(1, 5, "a")]
    assert migrate(NotRenamed, Old, [Old(1, 2, "a")]) == [NotRenamed(1, 2, "a", 7)]


@given(values=st.lists(OLD, max_size=5))
@settings(max_examples=40, deadline=None)
def test_the_default_takes_the_place_of_none_where_it_is_no_longer_allowed(values: list[Old]) -> None:
    expected = [NoneReplaced(v.id, v.count, "nobody" if v.name is None else v.name) for v in values]
    assert migrate(NoneReplaced, Old, values) == expected


def test_what_may_be_none_from_now_on_goes_on_as_it_is() -> None:
    assert resolve(MadeOptional, Old).outcome is AS_IS
    assert resolve(list[int | None], list[int]).outcome is AS_IS


def test_other_classes_with_the_same_fields_go_on_as_they_are() -> None:
    assert resolve(OldTuple, Old).outcome is AS_IS
    struct = pa.struct([("id", pa.int64()), ("count", pa.int64()), ("name", pa.string())])
    assert resolve(struct, Old).outcome is AS_IS


@given(values=st.lists(OLD, max_size=5))
@settings(max_examples=40, deadline=None)
def test_all_changes_at_once(values: list[Old]) -> None:
    expected = [Everything(0.5, Decimal(v.count), v.id) for v in values]
    assert migrate(Everything, Old, values) == expected


@given(values=st.lists(st.none() | OLD, max_size=5))
@settings(max_examples=40, deadline=None)
def test_another_order_of_fields_is_read_by_a_reconfigured_serializer_without_a_migration(
    values: list[Old | None],
) -> None:
    written = serializer_of(Old).to_arrow(values)
    verdict = resolve(Reordered, Old)
    expected = [v and Reordered(v.count, v.name, v.id) for v in values]

    assert verdict.outcome is RECONFIGURED
    assert verdict.serializer.from_arrow(written) == expected
    assert verdict.serializer.to_arrow(expected).equals(written)
    assert verdict.serializer.resolve_compatibility(serializer_of(Old).snapshot()).outcome is AS_IS
    assert serializer_of(Reordered).arrow_type != written.type
    # Who cannot use it converts the columns instead.
    assert verdict.migrate is not None
    assert serializer_of(Reordered).from_arrow(verdict.migrate(written)) == expected


@pytest.mark.parametrize(
    ("wrap", "value"),
    [
        (lambda t: GenericAlias(list, t), lambda v: [v, v]),
        (lambda t: GenericAlias(dict, (str, t)), lambda v: {"a": v}),
        (lambda t: GenericAlias(dict, (str, GenericAlias(list, t))), lambda v: {"a": [v], "b": []}),
        (lambda t: GenericAlias(tuple, (int, t)), lambda v: (1, v)),
        (lambda t: GenericAlias(tuple, (t, ...)), lambda v: (v,)),
        (lambda t: GenericAlias(list, t | None), lambda v: [None, v]),
    ],
    ids=["list", "dict", "dict of lists", "tuple", "tuple of any length", "optional"],
)
class TestParts:
    """A whole fares as that of its parts which fares worst."""

    def test_a_part_that_is_incompatible_makes_the_whole_incompatible(self, wrap: Any, value: Any) -> None:
        assert resolve(wrap(OtherType), wrap(Old)).outcome is INCOMPATIBLE

    def test_a_part_that_migrates_makes_the_whole_migrate(self, wrap: Any, value: Any) -> None:
        assert resolve(wrap(Added), wrap(Old)).outcome is MIGRATION
        assert migrate(wrap(Added), wrap(Old), [value(Old(1, 2, "a"))]) == [value(Added(1, 2, "a"))]

    def test_a_part_that_is_reconfigured_makes_the_whole_reconfigured(self, wrap: Any, value: Any) -> None:
        verdict = resolve(wrap(Reordered), wrap(Old))
        written = serializer_of(wrap(Old)).to_arrow([None, value(Old(1, 2, "a"))])
        assert verdict.outcome is RECONFIGURED
        assert verdict.serializer.from_arrow(written) == [None, value(Reordered(2, "a", 1))]
        assert verdict.serializer.arrow_type == written.type

    def test_a_part_that_is_as_it_was_changes_nothing(self, wrap: Any, value: Any) -> None:
        assert resolve(wrap(MadeOptional), wrap(Old)).outcome is AS_IS


@dataclass
class BothOld:
    a: Old
    b: int


@dataclass
class BothNew:
    a: Reordered
    b: Decimal


def test_a_part_that_could_be_reconfigured_migrates_with_a_whole_that_has_to() -> None:
    assert resolve(BothNew, BothOld).outcome is MIGRATION
    found = migrate(BothNew, BothOld, [BothOld(Old(1, 2, "a"), 3)])
    assert found == [BothNew(Reordered(2, "a", 1), Decimal(3))]


def test_the_original_serializer_is_not_the_reconfigured_one() -> None:
    original = serializer_of(Reordered)
    verdict = original.resolve_compatibility(serializer_of(Old).snapshot())
    assert isinstance(verdict.serializer, RecordSerializer)
    assert verdict.serializer.names == ("id", "count", "name")
    assert isinstance(original, RecordSerializer)
    assert original.names == ("count", "name", "id")


def test_keys_of_a_dict_may_be_widened_but_not_merged() -> None:
    wider = pa.map_(pa.int64(), pa.string())
    narrow = pa.map_(pa.int32(), pa.string())
    assert migrate(wider, narrow, [{1: "a"}, {}]) == [{1: "a"}, {}]

    verdict = resolve(dict[NewKey, str], dict[OldKey, str])
    assert verdict.outcome is INCOMPATIBLE
    assert "two could become one" in verdict.reason
    assert resolve(set[NewKey], set[OldKey]).outcome is INCOMPATIBLE
    assert resolve(list[NewKey], list[OldKey]).outcome is MIGRATION


@dataclass(frozen=True)
class OldKey:
    a: int
    b: int


@dataclass(frozen=True)
class NewKey:
    a: int


def test_what_decides_where_state_is_never_migrates() -> None:
    verdict = never_migrated(resolve(int, pa.int32()), "a key")
    assert verdict.outcome is INCOMPATIBLE
    assert "a key can never be migrated" in verdict.reason
    assert never_migrated(resolve(Reordered, Old), "a key").outcome is RECONFIGURED


def test_a_snapshot_of_a_newer_version_is_refused_with_its_version() -> None:
    newer = SerializerSnapshot(class_id="arrow", version=2, config={"type": "int64", "more": 1})
    with pytest.raises(IncompatibleCheckpointError, match="version 1 or an earlier one, found version 2"):
        serializer_of(int).resolve_compatibility(newer)
    with pytest.raises(IncompatibleCheckpointError, match="found version 2"):
        restored_serializer(newer)


def test_a_snapshot_of_an_unknown_class_is_incompatible_and_named() -> None:
    unknown = SerializerSnapshot(class_id="quantum", version=9, config={})
    verdict = serializer_of(int).resolve_compatibility(unknown)
    assert verdict.outcome is INCOMPATIBLE
    assert "was quantum, is now int64" in verdict.reason
