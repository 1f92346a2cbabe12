"""Values that are kept once and handed out many times."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from airflow_provider_statecheck.state.serializers.custom_serializer import TtlSerializer, TtlValue
from airflow_provider_statecheck.state.serializers.record_serializer import RecordSerializer
from airflow_provider_statecheck.state.serializers.resolve import serializer_of


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
    _change(first.value if expires else first)
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
    _change(given)
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


def _change(value: Any) -> None:
    if isinstance(value, list):
        value.append(2)
    elif isinstance(value, dict):
        value["a"] = 2
    elif isinstance(value, Nested | Row):
        value.a.append(2)
    elif not isinstance(value, int):
        value.a = 2
