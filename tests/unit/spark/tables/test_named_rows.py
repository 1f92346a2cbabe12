"""Rows with names: those that functions get, and the columns of those that they emit."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import pickle
from collections import namedtuple
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import Row

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.spark.stages.executor.elements import rows_of, table_of
from airflow_provider_statecheck.spark.tables.named_rows import row_type

SCHEMA = pa.schema([("account", pa.int64()), ("amount", pa.int64())])
EXPECTED = {"account": 1, "amount": 500}


UNNAMED: Any = (5, 900)
PAIR: Any = namedtuple("PAIR", "a b")  # noqa: PYI024 - made as users make it


class Typed(NamedTuple):
    amount: int
    account: int


@dataclasses.dataclass
class Record:
    amount: int
    account: int


NAMED = [
    Row(amount=500, account=1),
    Typed(500, 1),
    row_type(("amount", "account"))(500, 1),
    {"amount": 500, "account": 1},
    Record(500, 1),
]


@pytest.mark.parametrize("emitted", NAMED, ids=lambda each: type(each).__module__ + type(each).__name__)
def test_rows_with_names_are_matched_by_name(emitted: Any) -> None:
    assert table_of([emitted, emitted], SCHEMA).to_pylist() == [EXPECTED] * 2
    nested = pa.schema(
        [("id", pa.int64()), ("row", pa.struct(list(SCHEMA))), ("rows", pa.list_(pa.struct(list(SCHEMA))))]
    )
    assert table_of([(7, emitted, [emitted, None])], nested).to_pylist() == [
        {"id": 7, "row": EXPECTED, "rows": [EXPECTED, None]}
    ]


def test_each_row_of_pyspark_is_matched_by_its_own_names() -> None:
    rows = [Row(amount=500, account=1), Row(account=2, amount=600), Typed(700, 3), (4, 800), Row(*UNNAMED)]
    assert [tuple(row.values()) for row in table_of(rows, SCHEMA).to_pylist()] == [
        (1, 500),
        (2, 600),
        (3, 700),
        (4, 800),
        (5, 900),
    ]


@pytest.mark.parametrize("name", ["_fields", "__fields__", "_asdict", "index", "count"])
def test_row_of_pyspark_has_a_column_with_the_name_of_an_attribute_of_rows(name: str) -> None:
    schema = pa.schema([("other", pa.int64()), (name, pa.string())])
    assert table_of([Row(**{name: "0", "other": 1})], schema).to_pylist() == [{"other": 1, name: "0"}]


def test_column_that_a_mapping_lacks_is_null_as_in_spark() -> None:
    assert table_of([{"account": 1}, {}], SCHEMA).to_pylist() == [
        {"account": 1, "amount": None},
        {"account": None, "amount": None},
    ]


@pytest.mark.parametrize(
    ("emitted", "found"),
    [
        ({"account": 1, "amount": 2, "fee": 3}, r"further names \['fee'\]"),
        (Row(account=1, fee=2), r"without \['amount'\]"),
        (Row(account=1, amount=2, fee=3), r"further names \['fee'\]"),
        (PAIR(1, 2), r"names \['a', 'b'\], without \['account', 'amount'\]"),
        ((1, 2, 3), "3 columns instead of 2"),
        (5, "1 column instead of 2"),
    ],
)
def test_row_with_other_columns_is_refused_by_name(emitted: Any, found: str) -> None:
    with pytest.raises(UnsupportedStateError, match=found):
        table_of([emitted], SCHEMA)


@pytest.mark.parametrize("emitted", [{"Account": 1, "AMOUNT": 500}, Row(AMOUNT=500, Account=1)])
def test_case_of_names_counts_as_spark_is_set(emitted: Any) -> None:
    assert table_of([emitted], SCHEMA).to_pylist() == [EXPECTED]
    with pytest.raises(UnsupportedStateError, match="Account"):
        table_of([emitted], SCHEMA, is_case_sensitive=True)
    twins = pa.schema([("a", pa.int64()), ("A", pa.int64())])
    assert table_of([{"A": 2, "a": 1}], twins).to_pylist() == [{"a": 1, "A": 2}]


def test_row_has_its_columns_under_any_names() -> None:
    names = ("id", "_dlt_id", "class", "a.b", "count", "_fields", "id")
    (row,) = rows_of(pa.Table.from_arrays([pa.array([at]) for at in range(len(names))], names=names))
    assert row == tuple(range(len(names)))
    assert (row.id, row._dlt_id, row.count) == (0, 1, 4)
    assert [getattr(row, name) for name in ("class", "a.b")] == [2, 3]
    assert row._fields == names
    assert row._replace(_dlt_id=9)[1] == 9
    assert "_dlt_id=1" in repr(row)
    schema = pa.schema([(name, pa.int64()) for name in ("a.b", "class")])
    emitted = row_type(("class", "a.b"))(1, 2)
    assert table_of([emitted], schema).to_pylist() == [{"a.b": 2, "class": 1}]


@pytest.mark.parametrize("names", [("account", "amount"), ("account", "the amount", "count", "class")])
def test_a_name_that_is_no_column_is_answered_with_the_columns(names: tuple[str, ...]) -> None:
    row = row_type(names)(*range(len(names)))
    with pytest.raises(AttributeError) as error:
        row.accnt  # noqa: B018 - is what fails
    assert str(error.value) == f"Expected one of the columns {', '.join(names)}, found 'accnt'; did you mean account?"
    assert not hasattr(row, "nothing_like_it")
    assert row.account == 0
    assert pickle.loads(pickle.dumps(tuple(row))) == tuple(row)
    assert copy.copy(row) == row


def test_names_that_libraries_ask_each_row_for_and_repeated_ones_are_compared_with_no_column(monkeypatch) -> None:
    compared: list[str] = []

    def noted(name: str, *_: Any, **__: Any) -> list[str]:
        compared.append(name)
        return []

    monkeypatch.setattr(difflib, "get_close_matches", noted)
    for number in range(200):
        row = row_type(("account", "amount"))(number, 1)
        assert not any(hasattr(row, name) for name in ("__array__", "_typ", "_ipython_display_", "dtype_of_a_library"))
    assert compared == ["dtype_of_a_library"]
