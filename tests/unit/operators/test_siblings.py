from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.operators.pyspark import CheckpointedPySparkOperator
from airflow_provider_statecheck.operators.siblings import refuse_shared_uid
from airflow_provider_statecheck.operators.spark_submit import CheckpointedSparkSubmitOperator


def _callable(task_id: str, **arguments: Any) -> BaseOperator:
    return CheckpointedPySparkOperator(task_id=task_id, python_callable=lambda spark: None, **arguments)


def _submitted(task_id: str, **arguments: Any) -> BaseOperator:
    return CheckpointedSparkSubmitOperator(task_id=task_id, application="program.py", **arguments)


@pytest.mark.parametrize("second", [_callable, _submitted])
def test_two_tasks_of_any_kind_with_one_uid_in_one_job_are_refused(second) -> None:
    with DAG("dag") as dag:
        _callable("one", job="j", uid="u")
        second("two", job="j", uid="u")
    with pytest.raises(InvalidConfigurationError, match="'one' and 'two'"):
        refuse_shared_uid("one", dag.tasks)


@pytest.mark.parametrize(
    "other", [{"job": "k", "uid": "u"}, {"job": "j", "uid": "v"}, {"job": "j", "uid": "u", "map_key": "m"}]
)
def test_another_job_uid_or_map_key_is_another_stage(other: dict[str, str]) -> None:
    with DAG("dag") as dag:
        _callable("one", job="j", uid="u")
        _submitted("two", **other)
    refuse_shared_uid("one", dag.tasks)


def test_tasks_without_state_are_nobodys_siblings() -> None:
    with DAG("dag") as dag:
        _callable("one")
        BaseOperator(task_id="two")
    refuse_shared_uid("one", dag.tasks)
