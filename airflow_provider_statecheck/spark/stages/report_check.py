"""Whether all subtasks behind a key have reported, so that none is left out at the end of the input without a word."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_provider_statecheck.exceptions import CoordinatorError
from airflow_provider_statecheck.spark.stages.executor.control import TaskReport
from airflow_provider_statecheck.spark.stages.planned import PlannedVertex


def require_all_subtasks(reports: Iterable[TaskReport], vertices: Sequence[PlannedVertex], parallelism: int) -> None:
    """
    Refuse the reports of an increment in which Spark ran some subtasks of a keyed vertex and not others.

    Spark runs none where it knows that there are no rows.

    :raises CoordinatorError: naming the subtasks that are missing, or that reported twice.
    """
    reports = list(reports)
    for number, vertex in enumerate(vertices):
        found = sorted(report.subtask for report in reports if report.vertex == number)
        if vertex.key is not None and found and found != list(range(parallelism)):
            raise CoordinatorError(
                f"Expected a report of each of the {parallelism} subtasks behind key_by{vertex.key.columns}, found those of "
                f"{found}; Spark changed the number of partitions, so turn off what coalesces them."
            )
