"""What was seen of ranges, in as few pieces as say the same."""

from __future__ import annotations

from airflow_provider_statecheck.spark.sources.sql_relation import KeyRange
from airflow_provider_statecheck.spark.sources.sql_source import Observation, merge_adjacent


def seen(above, up_to, rows=1, newest=None):
    return Observation(KeyRange(above, up_to), rows, newest)


def test_neighbours_become_one():
    assert merge_adjacent([seen(None, 3, 2, 7), seen(3, 5, 1, 9), seen(5, 6)]) == [seen(None, 6, 4, 9)]


def test_ranges_with_a_gap_between_them_and_rows_without_a_key_stay_apart():
    apart = [seen(None, 3), seen(5, 6), seen(None, None), seen(6, 8)]

    assert merge_adjacent(apart) == apart
