"""Rows of Arrow columns as JSON."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_statecheck.queryable import answers
from airflow_provider_statecheck.queryable.answers import first_rows, json_column

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
