"""Values and columns in the types of a schema: held exactly, or refused."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_statecheck.spark.tables.exact_values import arrow_table, exact_array, exact_table

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PAIR = pa.struct([("a", pa.int64()), ("b", pa.float64())])
CHANGED = [
    (True, pa.int64()),
    (True, pa.float64()),
    (True, pa.float32()),
    (pd.Timestamp("2026-01-01 00:00:00.000000789"), pa.timestamp("us")),
    (pd.Timestamp("2026-01-01 00:00:00.000000789", tz="UTC"), pa.timestamp("us", "UTC")),
    (pd.Timestamp("2026-01-01 00:00:00.000000001"), pa.date32()),
    (pd.Timedelta(1500, "ns"), pa.duration("us")),
    (datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=5))), pa.date32()),
    (pd.NaT, pa.date32()),
    (1.5, pa.int64()),
    (np.float32(2.5), pa.int32()),
    (np.bool_(True), pa.int32()),
    (300, pa.int8()),
    (Decimal("1.5"), pa.int64()),
    (2**60 + 1, pa.float64()),
    (1e300, pa.float32()),
    (1.5, pa.decimal128(10, 2)),
    (Decimal("1.255"), pa.decimal128(10, 2)),
    (1, pa.string()),
    (b"a", pa.string()),
    ("a", pa.binary()),
    ("1", pa.int64()),
    (1, pa.bool_()),
    (5, pa.date32()),
    (NOON, pa.date32()),
    (5, pa.timestamp("us")),
    (NOON, pa.timestamp("us")),
    (date(2026, 1, 1), pa.timestamp("us")),
    (NOON.replace(tzinfo=None, microsecond=5), pa.timestamp("ms")),
    (1, pa.duration("us")),
    ([1.5], pa.list_(pa.int64())),
    ("ab", pa.list_(pa.string())),
    ({"x": 1.5}, pa.map_(pa.string(), pa.int64())),
    ({None: 1}, pa.map_(pa.string(), pa.int64())),
    ({"a": 1.5, "b": 1.0}, PAIR),
    ({"a": 1, "c": 1.0}, PAIR),
    ([{"a": 1.5}], pa.list_(PAIR)),
    ({"a": None}, pa.struct([pa.field("a", pa.int64(), nullable=False)])),
]
HELD = [
    ([2.0, None, np.int64(3), Decimal(4)], pa.int64()),
    ([1.1, float("inf"), float("nan"), 7], pa.float32()),
    ([Decimal("1.2500"), 3, None], pa.decimal128(10, 2)),
    ([datetime(2026, 1, 1, tzinfo=UTC), date(2026, 1, 1)], pa.date32()),
    ([NOON, None], pa.timestamp("us", "UTC")),
    ([timedelta(seconds=1)], pa.duration("us")),
    ([[1, None], None, []], pa.list_(pa.int64())),
    ([np.array([1, 2])], pa.large_list(pa.int32())),
    ([{"x": 1}, None, [("y", None)], {}], pa.map_(pa.string(), pa.int64())),
    ([{"b": 2.0, "a": 1}, None, {"a": 5}], PAIR),
    ([(3, 4.0), None], PAIR),
    ([None, None], PAIR),
    ([], pa.map_(pa.string(), PAIR)),
    ([None, {"a": 1}], pa.struct([pa.field("a", pa.int64(), nullable=False)])),
]


@pytest.mark.parametrize(("value", "kind"), CHANGED, ids=str)
def test_value_that_a_type_does_not_hold_is_refused(value: Any, kind: Any) -> None:
    with pytest.raises((pa.ArrowException, TypeError, ValueError, OverflowError)):
        exact_array([None, value], kind)


@pytest.mark.parametrize(("values", "kind"), HELD, ids=str)
def test_values_that_a_type_holds_are_those_of_arrow(values: list[Any], kind: Any) -> None:
    found = exact_array(values, kind)
    assert found.type == kind
    assert [repr(_plain(each)) for each in found.to_pylist()] == [
        repr(_plain(each)) for each in _expected(values, kind)
    ]


def naive(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC).replace(tzinfo=None)  # type: ignore[misc,arg-type]


@pytest.mark.parametrize(
    ("local", "zone", "moment"),
    [
        (naive(2026, 1, 1), "Asia/Tokyo", datetime(2025, 12, 31, 15, tzinfo=UTC)),
        (naive(2026, 1, 1), "+05:30", datetime(2025, 12, 31, 18, 30, tzinfo=UTC)),
        (pd.Timestamp("2026-01-01"), "Asia/Tokyo", datetime(2025, 12, 31, 15, tzinfo=UTC)),
        (naive(2026, 10, 25, 2, 30), "Europe/Berlin", datetime(2026, 10, 25, 1, 30, tzinfo=UTC)),
        (naive(2026, 3, 29, 2, 30), "Europe/Berlin", datetime(2026, 3, 29, 1, 30, tzinfo=UTC)),
        (NOON, "Asia/Tokyo", NOON),
        (naive(2026, 1, 1), "UTC", datetime(2026, 1, 1, tzinfo=UTC)),
    ],
)
def test_time_without_a_zone_is_in_that_of_the_session(local: Any, zone: str, moment: datetime) -> None:
    kind = pa.timestamp("us", "UTC")
    assert exact_array([local, None], kind, zone=zone).to_pylist() == [moment, None]
    nested = pa.list_(pa.struct([("at", kind)]))
    assert exact_array([[{"at": local}]], nested, zone=zone).to_pylist() == [[{"at": moment}]]
    assert exact_array([{local: local}], pa.map_(kind, kind), zone=zone).to_pylist() == [[(moment, moment)]]


def test_time_without_a_zone_is_refused_in_a_zone_that_python_does_not_know() -> None:
    with pytest.raises(ValueError, match=r"'Mars/Base', the zone of the session.* give the time a zone"):
        exact_array([naive(2026, 1, 1)], pa.timestamp("us", "UTC"), zone="Mars/Base")


def _expected(values: list[Any], kind: Any) -> list[Any]:
    named = [dict(zip("ab", each, strict=True)) if isinstance(each, tuple) else each for each in values]
    lists = [each.tolist() if isinstance(each, np.ndarray) else each for each in named]
    numbers = [float(each) if isinstance(each, Decimal) and pa.types.is_integer(kind) else each for each in lists]
    return list(pa.array(numbers, kind).to_pylist())


def _plain(value: Any) -> Any:
    return sorted(value.items()) if isinstance(value, dict) else value


TABLE = {"b": [1, 2], "A": ["x", None], "s": [{"q": 2, "p": 1}, None]}
WANTED = pa.schema([("a", pa.string()), ("b", pa.int8()), ("s", pa.struct([("p", pa.int8()), ("q", pa.int64())]))])


@pytest.mark.parametrize("form", [pa.table, pa.record_batch, pd.DataFrame], ids=["Arrow", "batch", "pandas"])
def test_table_is_matched_by_name_and_held_by_its_types(form: Any) -> None:
    found = exact_table(arrow_table(form(TABLE)), WANTED)
    assert found.schema == WANTED
    assert found.to_pylist() == [{"a": "x", "b": 1, "s": {"p": 1, "q": 2}}, {"a": None, "b": 2, "s": None}]


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        ({"b": ["1"]}, pa.int64()),
        ({"b": [1]}, pa.string()),
        ({"b": [True]}, pa.int64()),
        ({"b": [1.5]}, pa.int64()),
        ({"b": [1.1]}, pa.decimal128(10, 1)),
        ({"b": [2**60 + 1]}, pa.float64()),
        ({"b": [1e300]}, pa.float32()),
        ({"b": [NOON]}, pa.date32()),
        ({"b": [NOON]}, pa.timestamp("us")),
        ({"b": [300]}, pa.int8()),
        ({"b": [[1.5]]}, pa.list_(pa.int64())),
        ({"b": [1], "c": [2]}, pa.int64()),
        ({"c": [1]}, pa.int64()),
    ],
)
def test_table_of_other_columns_or_values_is_refused(columns: dict[str, Any], kind: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        exact_table(pa.table(columns), pa.schema([("b", kind)]))


def test_null_in_a_column_that_is_declared_as_never_null_is_refused() -> None:
    wanted = pa.schema([pa.field("b", pa.int64(), nullable=False)])
    with pytest.raises(ValueError, match="b int64: null"):
        exact_table(pa.table({"b": [1, None]}), wanted)


REQUIRED = (
    pa.int32(),
    pa.string(),
    pa.decimal128(5, 2),
    pa.timestamp("us", "UTC"),
    pa.list_(pa.field("element", pa.int8(), nullable=False)),
    pa.map_(pa.string(), pa.int8()),
    pa.struct([pa.field("x", pa.date32(), nullable=False)]),
)


@pytest.mark.parametrize("kind", REQUIRED, ids=str)
@pytest.mark.parametrize(
    "form", [lambda kind: kind, lambda kind: pa.list_(kind), lambda kind: pa.struct([("s", kind)])]
)
def test_null_struct_with_a_field_that_is_never_null_is_cast_and_stored(kind: Any, form: Any) -> None:
    wanted = form(pa.struct([pa.field("a", kind, nullable=False)]))
    values = [None, [None, None] if pa.types.is_list(wanted) else None]
    found = exact_array(values, wanted)
    assert found.cast(wanted).to_pylist() == values
    target = io.BytesIO()
    pq.write_table(pa.table([found], schema=pa.schema([("x", wanted)])), target)
    assert pq.read_table(target).column("x").to_pylist() == values
