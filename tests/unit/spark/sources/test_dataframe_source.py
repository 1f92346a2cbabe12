"""Splits of a user's own, without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.sources import item_source

DataFrameSource: Any = item_source.DataFrameSource  # no session is needed here


class Frame(list[Any]):
    def unionByName(self, other):
        return Frame([*self, *other])


def load(spark, split):
    return Frame([spark, split])


def keys(enumerator):
    return [[split.split_id for split in each.splits] for each in iter(enumerator.next_increment, None)]


def test_splits_are_loaded_by_the_users_function():
    enumerator = DataFrameSource([1, 2, 3], load, splits_per_increment=2).open("spark")

    assert enumerator.load(enumerator.next_increment()) == ["spark", 1, "spark", 2]
    assert enumerator.load(enumerator.next_increment()) == ["spark", 3]
    assert enumerator.next_increment() is None


def test_splits_may_come_from_a_function_and_any_type_have_keys():
    source = DataFrameSource(lambda: [{"day": 1}, {"day": 2}], load, key=lambda split: f"day-{split['day']}")

    assert keys(source.open(None)) == [["day-1"], ["day-2"]]


def test_nobody_knows_the_bytes():
    enumerator = DataFrameSource(["a"], load).open(None)

    assert (enumerator.total_bytes, enumerator.finished_bytes) == (None, None)
    assert enumerator.next_increment().size_bytes is None


def test_no_splits_are_no_increments():
    assert keys(DataFrameSource([], load).open(None)) == []


def test_two_splits_of_one_key_are_refused():
    with pytest.raises(InvalidConfigurationError, match="found 1 keys"):
        DataFrameSource([1, "1"], load).open(None)


@pytest.mark.parametrize("key", ["", "a\0b", 5, None])
def test_a_key_is_a_text(key):
    with pytest.raises(InvalidConfigurationError, match="key of a split"):
        DataFrameSource([1], load, key=lambda split: key).open(None)


@pytest.mark.parametrize("count", [0, True, "2"])
def test_an_increment_has_one_split_at_least(count):
    with pytest.raises(InvalidConfigurationError, match="splits_per_increment"):
        DataFrameSource([1], load, splits_per_increment=count)
