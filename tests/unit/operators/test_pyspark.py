"""What a PySpark task ends with, its optional parameters, and the link to its page, without Spark."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import pytest
from airflow.providers.apache.spark.operators.spark_pyspark import PySparkOperator

from airflow_provider_statecheck.operators.links import CheckpointsLink, page_of, push_link
from airflow_provider_statecheck.operators.pyspark import (
    CheckpointedPySparkOperator,
    DriverLostError,
    with_optional_parameters,
)


class NoTarget:
    def start(self) -> None:
        """Start nothing."""


def stop_a_session_whose_jvm_is_dead(_: object) -> None:
    """Fail as py4j does: two errors, each in the handling of the one before."""
    try:
        raise DriverLostError("The driver's JVM died.") from EOFError()
    except DriverLostError:
        try:
            raise ConnectionResetError
        except ConnectionResetError:
            raise ConnectionRefusedError  # noqa: B904


def test_a_lost_driver_is_what_the_task_ends_with_although_its_session_cannot_be_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PySparkOperator, "execute_callable", stop_a_session_whose_jvm_is_dead)
    operator = CheckpointedPySparkOperator(task_id="work", python_callable=lambda: None)
    operator._target = NoTarget()  # type: ignore[assignment]
    with pytest.raises(DriverLostError, match="JVM died") as raised:
        operator.execute_callable()
    assert isinstance(raised.value.__cause__, EOFError)


def test_what_is_given_at_run_time_may_be_left_out_when_arguments_are_bound() -> None:
    def stage(day: str, spark: Any, checkpoint: Any, params: Any) -> None: ...

    signature = inspect.signature(with_optional_parameters(stage, "spark", "checkpoint"))
    assert signature.bind("monday", params={}).arguments == {"day": "monday", "params": {}}


def test_what_stands_behind_it_cannot_be_given_by_position() -> None:
    def stage(spark: Any, checkpoint: Any, day: str) -> None: ...

    signature = inspect.signature(with_optional_parameters(stage, "spark", "checkpoint"))
    with pytest.raises(TypeError, match="too many positional"):
        signature.bind("monday")


PAGE = "/statecheck/dags/nightly/runs/manual__2026-01-01T00%3A00%3A00%2B00%3A00/tasks/features"


@dataclass
class RecordingTask:
    dag_id: str = "nightly"
    run_id: str = "manual__2026-01-01T00:00:00+00:00"
    task_id: str = "features"
    map_index: int = -1
    pushed: dict[str, str] = field(default_factory=dict)

    def xcom_push(self, key: str, value: str) -> None:
        self.pushed[key] = value


class Operator:
    pass


@pytest.mark.parametrize(
    ("base_url", "root"),
    [
        ("https://airflow.example.com/", "https://airflow.example.com"),
        ("https://example.com/airflow", "https://example.com/airflow"),
        ("/", ""),
        ("/airflow/", "/airflow"),
    ],
)
def test_link_leads_to_the_tasks_page_below_the_base_url(monkeypatch, base_url: str, root: str) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", base_url)
    assert page_of(RecordingTask()) == root + PAGE
    assert page_of(RecordingTask(map_index=3)) == f"{root}{PAGE}?map_index=3"


def test_link_is_pushed_at_once_and_is_the_same_at_the_end() -> None:
    task, operator = RecordingTask(), Operator()
    push_link(operator, {"ti": task})
    assert task.pushed == {"_link_CheckpointsLink": CheckpointsLink().get_link(operator, ti_key=None)}


def test_a_task_that_has_not_begun_has_no_link() -> None:
    assert CheckpointsLink().get_link(Operator(), ti_key=None) == ""
