"""What is saved comes back equal, whatever its type: lists as one column, and values kept once and handed out often."""

from __future__ import annotations

import pickle
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from airflow_provider_statecheck.state.descriptors import StateKind
from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
from airflow_provider_statecheck.state.serializers.custom_serializer import TtlSerializer, TtlValue
from airflow_provider_statecheck.state.serializers.record_serializer import RecordSerializer
from airflow_provider_statecheck.state.serializers.resolve import serializer_of
from tests.unit.state.serializers.record_types import Colour, Frozen, Item, Level, Order, Point, Renamed, WithLateField

INT64 = st.integers(-(2**63), 2**63 - 1)
FLOAT = st.floats(allow_nan=False)
TEXT = st.text(st.characters(codec="utf-8"))
ZONES = st.one_of(
    st.none(),
    st.sampled_from([UTC, ZoneInfo("UTC"), ZoneInfo("Europe/Berlin"), ZoneInfo("America/St_Johns")]),
    st.timedeltas(timedelta(hours=-23, minutes=-59), timedelta(hours=23, minutes=59)).map(timezone),
)
NAIVE = st.datetimes()
DATETIMES = st.builds(lambda at, zone, fold: at.replace(tzinfo=zone, fold=fold), NAIVE, ZONES, st.integers(0, 1))
DECIMALS = st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(f"{n}E-18"))
DURATIONS = st.integers(-(10**18), 10**18).map(lambda us: timedelta(microseconds=us))
ITEMS = st.builds(Item, TEXT, INT64, FLOAT)
POINTS = st.builds(Point, INT64, st.none() | TEXT)
ORDERS = st.builds(
    Order,
    id=INT64,
    items=st.lists(ITEMS, max_size=3),
    colour=st.sampled_from(Colour),
    note=st.none() | TEXT,
    tags=st.dictionaries(TEXT, st.sets(INT64, max_size=3), max_size=3),
    seen=st.none() | DATETIMES,
    place=st.tuples(INT64, FLOAT),
)

TYPES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "bool": (bool, st.booleans()),
    "int": (int, INT64),
    "float": (float, FLOAT),
    "str": (str, TEXT),
    "bytes": (bytes, st.binary()),
    "decimal": (Decimal, DECIMALS),
    "date": (date, st.dates()),
    "datetime": (datetime, DATETIMES),
    "time": (time, st.times()),
    "timedelta": (timedelta, DURATIONS),
    "uuid": (UUID, st.uuids()),
    "enum": (Colour, st.sampled_from(Colour)),
    "int enum": (Level, st.sampled_from(Level)),
    "annotated": (Annotated[int, "metres"], INT64),
    "list": (list[int], st.lists(INT64)),
    "list of optional": (list[int | None], st.lists(st.none() | INT64)),
    "tuple": (tuple[int, str], st.tuples(INT64, TEXT)),
    "tuple of any length": (tuple[str, ...], st.lists(TEXT).map(tuple)),
    "set": (set[str], st.sets(TEXT)),
    "frozenset": (frozenset[int], st.frozensets(INT64)),
    "dict": (dict[str, int], st.dictionaries(TEXT, INT64)),
    "dict of optional": (dict[int, str | None], st.dictionaries(INT64, st.none() | TEXT)),
    "dict of lists of dicts": (
        dict[str, list[dict[int, bool]]],
        st.dictionaries(TEXT, st.lists(st.dictionaries(INT64, st.booleans(), max_size=2), max_size=2), max_size=3),
    ),
    "dataclass": (Item, ITEMS),
    "frozen dataclass": (Frozen, st.builds(Frozen, TEXT, POINTS)),
    "named tuple": (Point, POINTS),
    "nested": (Order, ORDERS),
    "aliases": (Renamed, st.builds(Renamed, TEXT, INT64)),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "float32": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "decimal128": (pa.decimal128(5, 2), st.integers(-99999, 99999).map(lambda n: Decimal(f"{n}E-2"))),
    "timestamp": (pa.timestamp("us"), NAIVE),
    "timestamp with zone": (pa.timestamp("us", tz="UTC"), NAIVE.map(lambda at: at.replace(tzinfo=UTC))),
    "fixed bytes": (pa.binary(3), st.binary(min_size=3, max_size=3)),
    "struct": (
        pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))]),
        st.fixed_dictionaries({"a": st.none() | st.integers(-9, 9), "b": st.none() | st.lists(st.none() | TEXT)}),
    ),
    "map": (pa.map_(pa.string(), pa.int64()), st.dictionaries(TEXT, st.none() | INT64)),
}
EVERY_TYPE = pytest.mark.parametrize("name", TYPES)


@EVERY_TYPE
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_values_come_back_equal_also_from_a_part_of_a_column(name: str, data: st.DataObject) -> None:
    wanted, strategy = TYPES[name]
    values = data.draw(st.lists(st.none() | strategy, max_size=6))
    serializer = serializer_of(wanted)
    start = data.draw(st.integers(0, len(values)))

    array = serializer.to_arrow(values)

    array.validate(full=True)
    assert array.type == serializer.arrow_type
    assert array.is_null().to_pylist() == [value is None for value in values]
    back = serializer.from_arrow(array)
    assert back == values
    assert [*map(type, back)] == [*map(type, values)]
    assert serializer.from_arrow(array.slice(start)) == values[start:]


@EVERY_TYPE
@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_a_time_to_live_takes_nothing_from_a_value(name: str, data: st.DataObject) -> None:
    wanted, strategy = TYPES[name]
    values = data.draw(st.lists(st.none() | st.builds(TtlValue, st.none() | strategy, INT64), max_size=5))
    serializer = TtlSerializer(serializer_of(wanted))

    array = serializer.to_arrow(values)

    assert array.type == serializer.arrow_type
    assert serializer.from_arrow(array) == values
    assert serializer.from_arrow(array[1:]) == values[1:]


@EVERY_TYPE
@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_a_copy_is_equal(name: str, data: st.DataObject) -> None:
    wanted, strategy = TYPES[name]
    value = data.draw(strategy)
    assert serializer_of(wanted).copy(value) == value


@EVERY_TYPE
def test_no_value_is_no_column_of_another_type(name: str) -> None:
    serializer = serializer_of(TYPES[name][0])
    empty = serializer.to_arrow([])
    assert empty.type == serializer.arrow_type
    assert serializer.from_arrow(empty) == []


@EVERY_TYPE
def test_a_serializer_can_be_sent_to_an_executor(name: str) -> None:
    serializer = serializer_of(TYPES[name][0])
    serializer.freezing()  # what it caches is not sent
    arrived = pickle.loads(pickle.dumps(serializer))
    assert arrived.arrow_type == serializer.arrow_type
    assert arrived.snapshot() == serializer.snapshot()


@pytest.mark.parametrize("kind", [set, frozenset])
def test_equal_sets_have_equal_columns(kind: Any) -> None:
    # Python keeps these numbers in the order in which they were added.
    one, other = kind([1, 9]), kind([9, 1])
    assert [*one] != [*other]
    numbers = serializer_of(kind[int]).to_arrow([one, None, kind(), other])
    assert numbers.to_pylist() == [[1, 9], None, [], [1, 9]]
    pairs = serializer_of(kind[tuple[frozenset[int], str | None]])
    found = pairs.to_arrow([kind([(frozenset(each), None)]) for each in ([1, 9], [9, 1])])
    assert found[0] == found[1]


def test_nan_and_infinity_stay_what_they_are() -> None:
    serializer = serializer_of(float)
    nan, *rest = serializer.from_arrow(serializer.to_arrow([float("nan"), float("inf"), -0.0]))
    assert nan != nan
    assert str(rest) == "[inf, -0.0]"


def test_an_instant_that_no_clock_showed_stays_what_it_was() -> None:
    skipped = datetime(2026, 3, 29, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    serializer = serializer_of(datetime)
    assert serializer.from_arrow(serializer.to_arrow([skipped])) == [skipped]


@pytest.mark.parametrize("zone", [ZoneInfo("Europe/Berlin"), None], ids=["zone", "naive"])
def test_the_second_of_two_equal_times_on_a_clock_stays_the_second(zone: ZoneInfo | None) -> None:
    second = datetime(2026, 10, 25, 2, 30, tzinfo=zone, fold=1)
    serializer: Any = serializer_of(datetime)
    (back,) = serializer.from_arrow(serializer.to_arrow([second]))
    assert (back.fold, back.utcoffset()) == (1, second.utcoffset())


def test_a_record_is_made_by_its_constructor_and_other_fields_are_set_afterwards() -> None:
    record = WithLateField(3, extra="x")
    record.doubled = 100
    serializer: Any = serializer_of(WithLateField)
    (back,) = serializer.from_arrow(serializer.to_arrow([record]))
    assert (back.base, back.doubled, back.extra) == (3, 100, "x")


def test_values_read_are_new_each_time() -> None:
    serializer: Any = serializer_of(list[int])
    array = serializer.to_arrow([[1]])
    serializer.from_arrow(array)[0].append(2)
    assert serializer.from_arrow(array) == [[1]]


@pytest.mark.parametrize(
    ("wanted", "value", "change"),
    [
        (list[int], [1], lambda value: value.append(2)),
        (set[int], {1}, lambda value: value.add(2)),
        (dict[str, int], {"a": 1}, lambda value: value.update(b=2)),
        (dict[str, list[int]], {"a": [1]}, lambda value: value["a"].append(2)),
        (tuple[list[int], int], ([1], 2), lambda value: value[0].append(2)),
        (Item, Item("a", 1, 2.0), lambda value: setattr(value, "sku", "b")),
        (Order, Order(1, [Item("a", 1, 2.0)]), lambda value: setattr(value.items[0], "sku", "b")),
        (pa.struct([("a", pa.int32())]), {"a": 1}, lambda value: value.update(a=2)),
    ],
    ids=["list", "set", "dict", "dict of lists", "tuple of list", "record", "nested record", "struct"],
)
def test_changing_a_copy_changes_nothing_else(wanted: Any, value: Any, change: Any) -> None:
    serializer = serializer_of(wanted)
    before = serializer.from_arrow(serializer.to_arrow([value]))[0]
    change(serializer.copy(value))
    assert value == before


def test_what_nobody_can_change_is_not_copied() -> None:
    value = Frozen("a", Point(1))
    assert serializer_of(Frozen).copy(value) is value


@pytest.mark.parametrize("wanted", [list[int], dict[str, int], Item, Point, tuple[list[int], int]])
def test_the_copy_of_a_missing_optional_value_is_none(wanted: Any) -> None:
    assert serializer_of(wanted | None).copy(None) is None


TEXTS = RegisteredState(name="texts", kind=StateKind.LIST, serializer=serializer_of(str))


@given(st.lists(st.none() | st.lists(st.text(max_size=3), max_size=4), max_size=6))
def test_lists_come_back_as_they_were(values: list[list[str] | None]) -> None:
    array = TEXTS.cells.write(values)
    assert array.type == TEXTS.cell_type
    assert array.null_count == values.count(None)
    assert TEXTS.cells.read(array) == values


@given(st.lists(st.none() | st.lists(st.text(max_size=3), max_size=4), min_size=2, max_size=6), st.integers(0, 3))
def test_part_of_a_column_comes_back_as_it_was(values: list[list[str] | None], start: int) -> None:
    array = TEXTS.cells.write(values).slice(start, 2)
    assert TEXTS.cells.read(array) == values[start : start + 2]


def test_list_with_nulls_below_which_there_are_values_is_read() -> None:
    array = pa.ListArray.from_arrays(
        pa.array([0, 2, 3], pa.int32()), pa.array(["a", "b", "c"]), mask=pa.array([True, False])
    )
    assert TEXTS.cells.read(array) == [None, ["c"]]


@dataclass
class Plain:
    a: int
    b: str


@dataclass
class Counted:
    a: int
    made: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.made += 1


@dataclass
class Checked:
    a: int

    def __post_init__(self) -> None:
        self.a += 1


@dataclass(kw_only=True)
class Named:
    a: int


@dataclass(init=False)
class OwnConstructor:
    a: int

    def __init__(self, a: int) -> None:
        self.a = a


@dataclass
class Nested:
    a: list[int]


class Row(NamedTuple):
    a: list[int]


STRUCT = pa.struct([("a", pa.int64())])
VALUES: dict[str, tuple[Any, Any]] = {
    "number": (int, 1),
    "list": (list[int], [1]),
    "dataclass": (Plain, Plain(1, "x")),
    "constructor that counts": (Counted, Counted(1)),
    "constructor that changes": (Checked, Checked(1)),
    "arguments by name": (Named, Named(a=1)),
    "constructor of its own": (OwnConstructor, OwnConstructor(1)),
    "dataclass with a list": (Nested, Nested([1])),
    "named tuple with a list": (Row, Row([1])),
    "struct": (STRUCT, {"a": 1}),
}


@pytest.mark.parametrize("expires", [False, True], ids=["for good", "for a time"])
@pytest.mark.parametrize(("kind", "value"), VALUES.values(), ids=VALUES)
def test_each_reader_gets_a_value_of_its_own(kind: Any, value: Any, expires: bool) -> None:
    serializer: Any = TtlSerializer(serializer_of(kind)) if expires else serializer_of(kind)
    stored = TtlValue(value, 7) if expires else value
    form = serializer.freezing()
    array = serializer.to_arrow([None, stored])
    expected = serializer.from_arrow(array)[1]
    nothing, kept = form.read(array)
    assert nothing is None
    first, second = form.thawed(kept), form.thawed(kept)
    assert first == second == expected
    assert type(first) is type(expected)
    change_in_place(first.value if expires else first)
    assert second == expected
    assert form.thawed(kept) == expected


@pytest.mark.parametrize("expires", [False, True], ids=["for good", "for a time"])
@pytest.mark.parametrize(("kind", "value"), VALUES.values(), ids=VALUES)
def test_what_is_kept_of_a_value_stays_when_the_value_is_changed(kind: Any, value: Any, expires: bool) -> None:
    serializer: Any = TtlSerializer(serializer_of(kind)) if expires else serializer_of(kind)
    given = deepcopy(value)
    form = serializer.freezing()
    kept = form.freeze(TtlValue(given, 7) if expires else given)
    before = serializer.to_arrow([TtlValue(value, 7) if expires else value, None])
    change_in_place(given)
    assert form.write([kept, None]).equals(before)


def test_fields_in_another_order_than_the_arguments_are_not_mixed_up() -> None:
    serializer: Any = serializer_of(Plain)
    turned = RecordSerializer(serializer.shape, serializer.fields[::-1])
    form = turned.freezing()
    array = turned.to_arrow([Plain(1, "x")])
    assert form.thawed(form.read(array)[0]) == form.thawed(form.freeze(Plain(1, "x"))) == Plain(1, "x")
    assert form.write([form.freeze(Plain(1, "x"))]).equals(array)


def test_entry_without_a_value_keeps_its_time() -> None:
    serializer: Any = TtlSerializer(serializer_of(Plain))
    form = serializer.freezing()
    array = serializer.to_arrow([TtlValue(None, 7)])
    (kept,) = form.read(array)
    assert form.thawed(kept) == TtlValue(None, 7)
    assert form.write([kept]).equals(array)


def change_in_place(value: Any) -> None:
    if isinstance(value, list):
        value.append(2)
    elif isinstance(value, dict):
        value["a"] = 2
    elif isinstance(value, Nested | Row):
        value.a.append(2)
    elif not isinstance(value, int):
        value.a = 2
