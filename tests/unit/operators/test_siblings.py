from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator, TaskGroup, task

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.operators.checkpointed import former_uids, refuse_shared_uid, uids_by_task
from airflow_provider_statecheck.operators.pyspark import CheckpointedPySparkOperator
from airflow_provider_statecheck.operators.spark_submit import CheckpointedSparkSubmitOperator
from airflow_provider_statecheck.operators.stage import CheckpointedStageOperator
from airflow_provider_statecheck.spark.stages.stage import Stage


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


def test_the_uids_of_a_dag_are_those_of_its_checkpointed_tasks() -> None:
    with DAG("dag") as dag:
        _callable("one")
        _submitted("two", uid="second")
        BaseOperator(task_id="three")
        with TaskGroup("group"):
            CheckpointedStageOperator(task_id="four", stage=Stage("named"))
    assert uids_by_task(dag.tasks) == {"one": ("one",), "two": ("second",), "group.four": ("group.four",)}


def test_a_renamed_task_had_other_uids() -> None:
    with DAG("dag") as dag:
        _callable("one", renamed_uids={"zero": "one", "function": "other function"})
    assert uids_by_task(dag.tasks) == {"one": ("one", "zero")}


def test_a_uid_that_is_known_only_when_the_task_runs_is_none_of_the_dags() -> None:
    with DAG("dag") as dag:
        rendered = _callable("one", uid="sales {{ params.region }}")
        CheckpointedSparkSubmitOperator.partial(task_id="two", application="a.py").expand(uid=["x", "y"])
        CheckpointedSparkSubmitOperator.partial(task_id="three", application="a.py").expand_kwargs([{"map_key": "x"}])
    rendered.uid = "sales north"
    assert uids_by_task(dag.tasks) == {"one": (), "two": (), "three": ()}


def test_mapped_tasks_of_any_kind_are_known_by_their_uid_without_a_key() -> None:
    @task.checkpointed_spark(map_key="{{ item }}", renamed_uids={"routes": "lines"})
    def lines(spark: Any, item: str) -> None: ...

    with DAG("dag") as dag:
        CheckpointedSparkSubmitOperator.partial(task_id="one", application="a.py").expand(map_key=["x", "y"])
        CheckpointedSparkSubmitOperator.partial(task_id="two", application="a.py", uid="second").expand(map_key=["x"])
        lines.expand(item=["x", "y"])
    assert uids_by_task(dag.tasks) == {"one": ("one",), "two": ("second",), "lines": ("lines", "routes")}


@pytest.mark.parametrize(
    ("renamed", "key", "former"),
    [
        ({"old": "new", "a": "b"}, None, ("old",)),
        ({"old": "new"}, "x", ("old[x]",)),
        ({"old[y]": "new[x]"}, "x", ("old[y]",)),
        ({"a": "b"}, "x", ()),
        ({"first": "old", "old": "new"}, None, ("old", "first")),
        ({"first": "old", "old": "new"}, "x", ("old[x]", "first[x]")),
        ({"new": "old", "old": "new"}, None, ("old",)),
    ],
)
def test_an_instance_of_a_renamed_task_keeps_its_key(
    renamed: dict[str, str], key: str | None, former: tuple[str, ...]
) -> None:
    assert former_uids("new", renamed, key) == former
