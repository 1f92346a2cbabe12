"""Where rows of a key are combined before the shuffle."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.spark.stages.executor.task_control import TaskReport
from airflow_provider_statecheck.spark.stages.increment_jobs import Combining


def reports(rows: int, keys: int) -> list[TaskReport]:
    return [TaskReport(vertex=0, subtask=i, rows=rows // 2, keys=keys // 2) for i in range(2)]


@pytest.mark.parametrize(("keys", "pays"), [(98, True), (100, False), (1000, False)])
def test_many_rows_of_a_key_are_combined_from_the_second_increment_on(keys: int, pays: bool) -> None:
    combining = Combining(None)
    assert not combining.is_on
    combining.observe(reports(1000, keys))
    assert combining.is_on is pays


def test_increment_that_combines_says_nothing_of_the_rows() -> None:
    combining = Combining(None)
    combining.observe(reports(1000, 10))
    combining.observe(reports(10, 10))
    assert combining.is_on


def test_increment_without_rows_and_other_vertices_change_nothing() -> None:
    combining = Combining(None)
    combining.observe([TaskReport(vertex=0, subtask=0), TaskReport(vertex=1, subtask=0, rows=1000, keys=1)])
    assert not combining.is_on


@pytest.mark.parametrize("wanted", [True, False])
def test_choice_of_the_user_stays(wanted: bool) -> None:
    combining = Combining(wanted)
    combining.observe(reports(1000, 10))
    assert combining.is_on is wanted
