"""That no subtask behind a key is left out without a word."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.exceptions import CoordinatorError
from airflow_provider_statecheck.spark.stages.executor.task_control import TaskReport
from airflow_provider_statecheck.spark.stages.increment_loop import require_all_subtasks
from airflow_provider_statecheck.spark.stages.planning import PlannedVertex
from airflow_provider_statecheck.spark.stages.stage import KeyNode

FREE = PlannedVertex(key=None, operators=(), output_schema=None)
KEYED = PlannedVertex(key=KeyNode(columns=("a",)), operators=(), output_schema=None)


def reports(vertex: int, *subtasks: int) -> list[TaskReport]:
    return [TaskReport(vertex=vertex, subtask=subtask) for subtask in subtasks]


def test_all_subtasks_or_none_have_reported() -> None:
    require_all_subtasks(reports(1, 2, 0, 1), [FREE, KEYED], 3)
    require_all_subtasks([], [FREE, KEYED], 3)


def test_subtasks_in_front_of_the_first_key_need_not_all_run() -> None:
    require_all_subtasks(reports(0, 1), [FREE, KEYED], 3)


@pytest.mark.parametrize("subtasks", [(0, 1), (0, 1, 1, 2), (1, 2, 3)])
def test_missing_or_repeated_report_behind_a_key_is_refused(subtasks: tuple[int, ...]) -> None:
    with pytest.raises(CoordinatorError, match="each of the 3 subtasks"):
        require_all_subtasks(reports(1, *subtasks), [FREE, KEYED], 3)
