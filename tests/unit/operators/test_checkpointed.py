"""Operators and decorators of functions in Python."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.execution_time import task_runner

from airflow_provider_statecheck.decorators.checkpointed_spark import checkpointed_spark_task
from airflow_provider_statecheck.operators.checkpointed import CheckpointedOperator
from airflow_provider_statecheck.operators.links import CheckpointsLink, page_of, push_link
from airflow_provider_statecheck.operators.pyspark import (
    CheckpointedPySparkOperator,
    CheckpointedStageOperator,
    DriverLostError,
    StageCallable,
)
from airflow_provider_statecheck.operators.spark_submit import (
    CheckpointedSparkSubmitOperator,
    CheckpointedStageSubmitOperator,
)

ARGUMENTS: dict[str, Any] = {
    "job": "sales/{{ ds }}",
    "uid": "stage",
    "map_key": "eu",
    "checkpoint_dir": "s3://lake/checkpoints",
    "storage_conn_id": "lake",
    "num_retained": 3,
    "retained_runs": 2,
    "checkpoint_timeout_seconds": 60.0,
    "tolerable_failed_checkpoints": 5,
    "overhead_budget": 0.05,
    "checkpoint_interval": "5 min",
    "min_pause": 30_000,
    "externalized_checkpoint_retention": "DELETE_ON_CANCELLATION",
    "savepoint_dir": "s3://lake/savepoints",
    "from_savepoint": "s3://lake/savepoints/savepoint-000000-000000000000",
    "from_checkpoint": "before:{{ ds }}",
    "fork": "again",
    "claim_mode": "claim",
    "renamed_uids": {"old": "stage"},
    "allow_non_restored_state": True,
    "savepoint_at_end": True,
    "data_inline_threshold": "1 MiB",
    "allowed_locations": ["s3://archive"],
    "on_clear": "resume",
    "on_overlap": "wait",
}


def stage(spark: Any, checkpoint: Any) -> None: ...


def make_pyspark(**arguments: Any) -> CheckpointedOperator:
    return CheckpointedPySparkOperator(task_id="t", python_callable=stage, **arguments)


def make_submit(**arguments: Any) -> CheckpointedOperator:
    return CheckpointedSparkSubmitOperator(task_id="t", application="job.py", **arguments)


def make_decorated(**arguments: Any) -> CheckpointedOperator:
    task: Any = checkpointed_spark_task(stage, **arguments)
    operator: CheckpointedOperator = task().operator
    return operator


def make_stage(**arguments: Any) -> CheckpointedOperator:
    return CheckpointedStageOperator(task_id="t", stage="pipelines.sales:stage", **arguments)


def make_stage_submit(**arguments: Any) -> CheckpointedOperator:
    return CheckpointedStageSubmitOperator(task_id="t", stage="pipelines.sales:stage", **arguments)


MAKERS = pytest.mark.parametrize("make", [make_pyspark, make_submit, make_decorated, make_stage, make_stage_submit])


def taken(operator: CheckpointedOperator) -> dict[str, Any]:
    return {name: getattr(operator, name) for name in ARGUMENTS}


@MAKERS
def test_arguments_are_taken(make) -> None:
    assert taken(make(**ARGUMENTS)) == ARGUMENTS


@MAKERS
def test_default_arguments_of_the_dag_are_taken(make) -> None:
    with DAG("d", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC), default_args=ARGUMENTS):
        assert taken(make()) == ARGUMENTS


@MAKERS
def test_what_is_not_given_is_left_to_the_configuration(make) -> None:
    own = {"claim_mode": "no_claim", "allow_non_restored_state": False, "savepoint_at_end": False}
    assert taken(make()) == dict.fromkeys(ARGUMENTS) | own


@MAKERS
def test_unknown_argument_is_refused(make) -> None:
    with pytest.raises(TypeError, match="num_retaned"):
        make(num_retaned=2)


@MAKERS
def test_texts_are_templated(make) -> None:
    assert set(CheckpointedOperator.checkpoint_template_fields) <= set(make().template_fields)


@MAKERS
def test_it_has_the_link_to_its_checkpoints(make) -> None:
    assert [link.name for link in make().operator_extra_links] == ["Checkpoints"]


def test_arguments_can_be_mapped() -> None:
    with DAG("d", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)):
        mapped = CheckpointedPySparkOperator.partial(
            task_id="t", python_callable=stage, checkpoint_dir="s3://lake/x", overhead_budget=0.1
        ).expand(map_key=["eu", "us"])
    assert mapped.partial_kwargs["overhead_budget"] == 0.1


class DeadSession:
    """A session whose JVM has died, which py4j tells by two errors."""

    def stop(self) -> None:
        try:
            raise ConnectionResetError
        except ConnectionResetError:
            raise ConnectionRefusedError  # noqa: B904


def test_a_lost_driver_is_what_the_task_ends_with_although_its_session_cannot_be_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lose(_: object) -> None:
        raise DriverLostError("The driver's JVM died.") from EOFError()

    monkeypatch.setattr(StageCallable, "execute_callable", lose)
    operator = CheckpointedPySparkOperator(task_id="work", python_callable=stage)
    operator.session_target = SimpleNamespace(start=lambda _: DeadSession())  # type: ignore[assignment]
    with pytest.raises(DriverLostError, match="JVM died") as raised:
        operator.execute_callable()
    assert isinstance(raised.value.__cause__, EOFError)


PAGE = "/statecheck/dags/nightly/runs/manual__2026-01-01T00%3A00%3A00%2B00%3A00/tasks/features"


@dataclass
class RecordingTask:
    dag_id: str = "nightly"
    run_id: str = "manual__2026-01-01T00:00:00+00:00"
    task_id: str = "features"
    map_index: int = -1


class Operator:
    pass


@pytest.mark.parametrize(
    ("base_url", "root"),
    [
        ("https://airflow.example.com/", "https://airflow.example.com"),
        ("https://example.com/airflow", "https://example.com/airflow"),
        ("https://anna:s3cret@example.com/airflow", "https://example.com/airflow"),
        ("/", ""),
        ("/airflow/", "/airflow"),
    ],
)
def test_link_leads_to_the_tasks_page_below_the_base_url(monkeypatch, base_url: str, root: str) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", base_url)
    assert page_of(RecordingTask()) == root + PAGE
    assert page_of(RecordingTask(map_index=3)) == f"{root}{PAGE}?map_index=3"


def test_link_is_pushed_at_once_without_a_backend_of_xcoms_and_is_the_same_at_the_end(monkeypatch) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", SimpleNamespace(send=sent.append), raising=False)
    operator = Operator()
    push_link(operator, {"ti": RecordingTask(map_index=3)})
    [message] = sent
    assert (message.key, message.value) == ("_link_CheckpointsLink", CheckpointsLink().get_link(operator, ti_key=None))
    assert (message.task_id, message.map_index) == ("features", 3)


def test_a_task_that_has_not_begun_has_no_link() -> None:
    assert CheckpointsLink().get_link(Operator(), ti_key=None) == ""
