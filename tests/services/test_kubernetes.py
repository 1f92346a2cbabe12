"""A driver that the Spark operator of Kubernetes runs, submitted with the operator of Airflow's provider."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.providers.cncf.kubernetes.operators.spark_kubernetes import SparkKubernetesOperator
from airflow.providers.common.compat.sdk import AirflowException

from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.payloads.additions import Additions
from airflow_provider_statecheck.payloads.kubernetes import spark_application_with
from tests.services.kinds import serve_kubernetes
from tests.services.task import RESUMED, Task
from tests.stand_in_task import context_of

pytestmark = pytest.mark.soak


@pytest.fixture
def cluster(connections, drivers) -> None:
    serve_kubernetes(connections, drivers)


def submit(task: Task, additions: Additions, number: int) -> None:
    spec = {
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
        "kind": "SparkApplication",
        "metadata": {"name": "totals"},
        "spec": {
            "type": "Python",
            "mainApplicationFile": f"local://{task.script.removeprefix('file://')}",
            "arguments": task.arguments,
            "driver": {"cores": 1},
            "executor": {"instances": 1},
        },
    }
    operator = SparkKubernetesOperator(
        task_id="submit",
        name="totals",
        namespace="etl",
        template_spec={"spark": spark_application_with(spec, additions)},
        startup_timeout_seconds=60,
    )
    context: Any = context_of(task.work, number, 2)
    context["ti"].xcom_push = lambda **_: None
    context |= {"run_id": "run", "task_instance": context["ti"], "dag": None}
    operator.execute(context)


def test_application_that_is_killed_goes_on_in_the_next_try(task: Task, cluster: None) -> None:
    task.trouble = "kill driver"
    with task.next_try(AttemptStatus.FAILED) as additions, pytest.raises(AirflowException, match="returned a failure"):
        submit(task, additions, 1)
    with task.next_try() as additions:
        submit(task, additions, 2)
    assert task.computed == RESUMED
    assert [each.status for each in task.attempts] == [AttemptStatus.FAILED, AttemptStatus.FINISHED]
    assert "/airflow_provider_statecheck-" in task.imported_from
