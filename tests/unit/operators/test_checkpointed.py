"""The arguments that all checkpointed operators share reach the operator whichever way Airflow passes them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_statecheck.decorators.checkpointed_spark import checkpointed_spark_task
from airflow_provider_statecheck.operators.checkpointed import CheckpointedOperator
from airflow_provider_statecheck.operators.pyspark import CheckpointedPySparkOperator
from airflow_provider_statecheck.operators.spark_submit import (
    CheckpointedSparkSubmitOperator,
    CheckpointedStageSubmitOperator,
)
from airflow_provider_statecheck.operators.stage import CheckpointedStageOperator

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
