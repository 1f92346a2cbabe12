"""
What could not come back equal is refused when it is saved or declared, or when another writer has made its columns.
"""

from __future__ import annotations

import collections
from dataclasses import InitVar, dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum, Flag
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.state.serializers.resolve import serializer_of
from tests.unit.state.serializers.record_types import Colour, Item, Level, Order, Point


class Rights(Flag):
    READ = 1
    WRITE = 2


class Zone(tzinfo):
    def utcoffset(self, at):
        return timedelta(0)

    def dst(self, at):
        return None

    def tzname(self, at):
        return "somewhere"

    def __repr__(self):
        return "Zone()"  # names of tests must not differ from one process to the next


@dataclass
class Tree:
    children: list[Tree]


@dataclass
class Empty:
    pass


@dataclass
class WithInitVar:
    a: int
    b: InitVar[int]


@dataclass
class Special(Item):
    more: int = 0


class Mark(Enum):
    LOW = 1
    HIGH = 2
    TOP = 2  # noqa: PIE796 - another name


@dataclass
class Marked:
    mark: Mark | None
    size: int


Untyped = collections.namedtuple("Untyped", ["a"])  # noqa: PYI024 - that is the point


@pytest.mark.parametrize(
    ("wanted", "value"),
    [
        (int, True),
        (int, 1.0),
        (int, 2**63),
        (int, "1"),
        (int, Level.LOW),
        (bool, 1),
        (float, True),
        (float, 2**53 + 1),
        (float, "1"),
        (str, b"a"),
        (str, "\ud800"),
        (bytes, "a"),
        (bytes, bytearray(b"a")),
        (Decimal, 1),
        (Decimal, Decimal("NaN")),
        (Decimal, Decimal("1e-19")),
        (Decimal, Decimal("1e20")),
        (date, datetime(2026, 1, 1, tzinfo=UTC)),
        (datetime, date(2026, 1, 1)),
        (datetime, datetime(2026, 1, 1, tzinfo=Zone())),
        (time, time(1, tzinfo=UTC)),
        (timedelta, timedelta.max),
        (UUID, "6c7f3b1e-0000-0000-0000-000000000000"),
        (Colour, "RED"),
        (Colour, Level.LOW),
        (list[int], (1,)),
        (list[int], [None]),
        (list[int], ["a"]),
        (set[int], frozenset([1])),
        (dict[str, int], {"a": None}),
        (dict[str | None, int], {None: 1}),
        (dict[str, int], [("a", 1)]),
        (tuple[int, str], (1,)),
        (tuple[int, str], [1, "a"]),
        (tuple[int, str], (1, None)),
        (Item, {"sku": "a"}),
        (Item, Special("a", 1, 1.0)),
        (Item, Item(None, 1, 1.0)),  # type: ignore[arg-type]
        (Order, Order(1, [Item("a", "b", 1.0)])),  # type: ignore[arg-type]
        (pa.int8(), 128),
        (pa.uint8(), -1),
        (pa.float32(), 0.1),
        (pa.timestamp("us"), datetime(2026, 1, 1, tzinfo=UTC)),
        (pa.timestamp("us", tz="UTC"), datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)),
        (pa.timestamp("s"), datetime(2026, 1, 1, microsecond=1, tzinfo=UTC).replace(tzinfo=None)),
        (pa.time32("ms"), time(1, microsecond=1)),
        (pa.duration("s"), timedelta(microseconds=1)),
        (pa.binary(3), b"ab"),
        (pa.decimal128(3, 1), Decimal("100.0")),
        (pa.struct([("a", pa.int32())]), {"a": 1, "b": 2}),
    ],
    ids=repr,
)
def test_a_value_that_would_come_back_different_is_refused(wanted: Any, value: Any) -> None:
    serializer = serializer_of(wanted)
    with pytest.raises(UnsupportedStateError, match=r"(?s)^(In the|Expected).*"):
        serializer.to_arrow([None, value])
    with pytest.raises(UnsupportedStateError):
        serializer.to_arrow([value])


def test_a_message_names_the_place_of_the_value() -> None:
    order = Order(1, [Item("a", "b", 1.0)])  # type: ignore[arg-type]
    with pytest.raises(
        UnsupportedStateError, match=r"In the field items of Order: In the field quantity of Item: .*builtins\.str 'b'"
    ):
        serializer_of(Order).to_arrow([order])
    with pytest.raises(UnsupportedStateError, match="Expected the field x of Point to have a value, found None"):
        serializer_of(Point).to_arrow([Point(None)])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "value", "read"),
    [
        (int, np.int64(3), 3),
        (float, np.float32(0.5), 0.5),
        (float, np.float64(0.1), 0.1),
        (bool, np.bool_(True), True),
        (str, np.str_("a"), "a"),
        (float, 3, 3.0),
    ],
    ids=repr,
)
def test_numbers_of_numpy_and_whole_numbers_for_floats_are_taken(wanted: Any, value: Any, read: Any) -> None:
    serializer = serializer_of(wanted)
    (back,) = serializer.from_arrow(serializer.to_arrow([value]))
    assert (back, type(back)) == (read, type(read))


@pytest.mark.parametrize(
    ("wanted", "advice"),
    [
        (list, r"list\[str\]"),
        (dict, r"dict\[str, int\]"),
        (int | str, "an optional field for each"),
        (int | str | None, "an optional field for each"),
        (object, "Use a dataclass"),
        (Any, "Use a dataclass"),
        (Tree, "within itself"),
        (Rights, "declare int"),
        (Empty, "found none"),
        (WithInitVar, "InitVar"),
        (Untyped, "typing.NamedTuple"),
        (list[object], "Use a dataclass"),
        (pa.timestamp("ns"), "microseconds or coarser"),
        (pa.dictionary(pa.int32(), pa.string()), "microseconds or coarser"),
        ("int", "Pass an object with serialize"),
    ],
    ids=repr,
)
def test_a_type_that_cannot_be_state_is_refused_with_advice(wanted: Any, advice: str) -> None:
    with pytest.raises(UnsupportedStateError, match=advice):
        serializer_of(wanted)


def test_a_record_of_a_function_is_refused_because_its_types_cannot_be_found() -> None:
    @dataclass
    class Local:
        other: Missing  # type: ignore[name-defined] # noqa: F821

    with pytest.raises(UnsupportedStateError, match="at the top of its module"):
        serializer_of(Local)


def test_a_serializer_is_taken_as_it_is() -> None:
    serializer = serializer_of(int)
    assert serializer_of(serializer) is serializer


NOON = {"local": datetime(2026, 1, 31, 12), "zone": "Europe/Berlin", "fold": False}  # noqa: DTZ001


@pytest.mark.parametrize(
    ("wanted", "values"),
    [
        (int, [1]),
        (Marked | None, [{"mark": "HIGH", "size": 1}, None]),
        (list[Item | None], [[None, {"sku": "a", "quantity": 1, "price": 0.5}], []]),
        (dict[str, int | None], [[("a", 1), ("b", None)], [("a", 1)]]),
        (datetime, [NOON, NOON | {"zone": None}, NOON | {"zone": "+02:00", "fold": True}]),
    ],
    ids=str,
)
def test_valid_columns_of_another_writer_are_taken(wanted: Any, values: list[Any]) -> None:
    serializer = serializer_of(wanted)
    array = pa.array(values, serializer.arrow_type)
    serializer.require_valid(array, "value")
    serializer.require_valid_or_null(pa.concat_arrays([pa.nulls(1, array.type), array]), "value")


@pytest.mark.parametrize(
    ("wanted", "value", "reason"),
    [
        (Item, {"sku": "a", "quantity": None, "price": 0.5}, "value.quantity to have a value, found 1 null;"),
        (Marked, {"mark": "TALL", "size": 1}, "value.mark to be one of LOW, HIGH, found 'TALL'"),
        (Marked, {"mark": "TOP", "size": 1}, "one of LOW, HIGH, found 'TOP'"),
        (list[int], [1, None], "each element of value to have a value"),
        (list[Level | None], ["NONE", None], "each element of value to be one of LOW, HIGH, found 'NONE'"),
        (dict[str, Level], [("a", "NONE")], "each value of value to be one of LOW, HIGH, found 'NONE'"),
        (dict[Level, int], [("NONE", 1)], "each key of value to be one of LOW, HIGH, found 'NONE'"),
        (
            dict[str, int],
            [("a", 1), ("b", 2), ("a", 3)],
            "each key of value to be in it once, found 1 entry too many",
        ),
        (datetime, NOON | {"local": None}, "a local time and a fold, found 1 null;"),
        (datetime, NOON | {"fold": None}, "a local time and a fold, found 1 null;"),
        (datetime, NOON | {"zone": "Mars/Olympus"}, "found 'Mars/Olympus'"),
    ],
    ids=str,
)
def test_invalid_columns_of_another_writer_are_refused(wanted: Any, value: Any, reason: str) -> None:
    serializer = serializer_of(wanted)
    array = pa.array([None, value], serializer.arrow_type)
    with pytest.raises(UnsupportedStateError, match=reason):
        serializer.require_valid_or_null(array, "value")
    with pytest.raises(UnsupportedStateError, match="Expected value to have a value, found 1 null;"):
        serializer.require_valid(array, "value")
