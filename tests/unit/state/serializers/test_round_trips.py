"""What is saved comes back equal, whatever its type, and so do lists as one column."""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from airflow_provider_statecheck.state.keyed.registered_state import ListCellSerializer
from airflow_provider_statecheck.state.serializers.custom_serializer import TtlSerializer, TtlValue
from airflow_provider_statecheck.state.serializers.resolve import serializer_of
from airflow_provider_statecheck.state.serializers.serializer import Outcome
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


TEXTS = ListCellSerializer(serializer_of(str))


@given(st.lists(st.none() | st.lists(st.text(max_size=3), max_size=4), max_size=6))
def test_lists_come_back_as_they_were(values: list[list[str] | None]) -> None:
    array = TEXTS.to_arrow(values)
    assert array.type == TEXTS.arrow_type
    assert array.null_count == values.count(None)
    assert TEXTS.from_arrow(array) == values


@given(st.lists(st.none() | st.lists(st.text(max_size=3), max_size=4), min_size=2, max_size=6), st.integers(0, 3))
def test_part_of_a_column_comes_back_as_it_was(values: list[list[str] | None], start: int) -> None:
    array = TEXTS.to_arrow(values).slice(start, 2)
    assert TEXTS.from_arrow(array) == values[start : start + 2]


def test_list_with_nulls_below_which_there_are_values_is_read() -> None:
    array = pa.ListArray.from_arrays(
        pa.array([0, 2, 3], pa.int32()), pa.array(["a", "b", "c"]), mask=pa.array([True, False])
    )
    assert TEXTS.from_arrow(array) == [None, ["c"]]


def test_copy_shares_nothing() -> None:
    lists = ListCellSerializer(serializer_of(list[int]))
    original = [[1], [2]]
    copy = lists.copy(original)
    copy[0].append(3)
    copy.append([4])
    assert original == [[1], [2]]


@pytest.mark.parametrize(
    ("old", "outcome"),
    [
        (pa.int64(), Outcome.COMPATIBLE_AS_IS),
        (pa.int32(), Outcome.COMPATIBLE_AFTER_MIGRATION),
        (pa.string(), Outcome.INCOMPATIBLE),
    ],
)
def test_lists_evolve_as_their_elements_do(old: pa.DataType, outcome: Outcome) -> None:
    lists = ListCellSerializer(serializer_of(pa.int64()))
    assert lists.resolve_compatibility(serializer_of(old).snapshot()).outcome is outcome
    assert lists.snapshot() == serializer_of(pa.int64()).snapshot()
