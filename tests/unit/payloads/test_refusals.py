"""Specifications that cannot work, and what the errors say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.payloads import databricks, dataproc, emr, glue, kubernetes, livy
from tests.unit.payloads.specifications import (
    BATCH,
    FIRST,
    INSTALLED,
    JOB,
    NEW_CLUSTER,
    ON_NEW_CLUSTER,
    STAGE,
    STEPS,
    WHEEL,
    spark_application,
)


def step(*words: str, jar: str = "command-runner.jar") -> list[dict[str, Any]]:
    return [{"Name": "s", "HadoopJarStep": {"Jar": jar, "Args": list(words)}}]


JVM = {"mainClass": "shop.Totals", "mainApplicationFile": "local:///opt/totals.jar"}
SCALA = spark_application(type="Scala", **JVM)
R_SCRIPT = spark_application(type="R", mainApplicationFile="local:///opt/totals.R")
SCHEDULE = {**spark_application(), "kind": "ScheduledSparkApplication"}
TASKS = [{"spark_python_task": {"python_file": f"{name}.py"}, "existing_cluster_id": "c"} for name in "ab"]
ON_EXISTING = {"existing_cluster_id": "c"}

OF_OTHER_LANGUAGES = [
    (kubernetes.spark_application_with, SCALA, "found type Scala in spec"),
    (kubernetes.spark_application_with, R_SCRIPT, "found type R in spec"),
    (kubernetes.spark_application_with, spark_application(mainApplicationFile="x.jar"), "found a JAR in spec.main"),
    (kubernetes.spark_application_with, SCHEDULE, "found a ScheduledSparkApplication"),
    (livy.batch_with, {"file": "s3a://x/totals.jar"}, "found a JAR in file"),
    (livy.batch_with, {"file": "s3a://x/totals.R"}, "found an R script in file"),
    (livy.batch_with, {"file": "x.py", "class_name": "shop.Totals"}, "found the class of a JVM application"),
    (dataproc.job_with, {"placement": {}, "spark_job": {"main_class": "x"}}, "found spark_job, which"),
    (dataproc.job_with, {"hive_job": {}, "pyspark_job": None}, "found hive_job, which"),
    (dataproc.batch_with, {"spark_sql_batch": {"query_file_uri": "gs://x.sql"}}, "found spark_sql_batch, which"),
    (dataproc.batch_with, {}, "found none, which"),
    (emr.steps_with, step("spark-submit", "--class", "X", "s3://x.jar"), "found a JAR in the step 's'"),
    (emr.steps_with, step("hive-script", "--run-hive-script"), "found the step 's', which"),
    (emr.steps_with, step("spark-submit", "x.py", jar="s3://x/script-runner.jar"), "found the step 's', which"),
    (emr.steps_with, [], "found no step, which"),
    (emr.container_job_with, {"sparkSqlJobDriver": {"entryPoint": "s3://x.sql"}}, "found sparkSqlJobDriver, which"),
    (emr.serverless_job_with, {"hive": {"query": "s3://x.sql"}}, "found hive, which"),
    (emr.serverless_job_with, {"sparkSubmit": {"entryPoint": "s3://x/totals.jar"}}, "found a JAR in job_driver"),
    (glue.run_with, {"--job-language": "scala"}, "found scala in script_args['--job-language']"),
    (glue.run_with, {"--scriptLocation": "s3://x/totals.scala"}, "found a Scala script"),
    (databricks.submitted_run_with, {**ON_EXISTING, "spark_jar_task": {}}, "found spark_jar_task, which"),
    (databricks.submitted_run_with, {"tasks": [{"sql_task": {}}, {"dbt_task": {}}]}, "found sql_task and dbt_task"),
    (databricks.submitted_run_with, {"spark_submit_task": {"parameters": ["x.jar"]}}, "found a JAR in spark_submit"),
]
OTHERS = [
    (livy.batch_with, {"file": ""}, "Expected a Python application in file, found none"),
    (livy.batch_with, {"file": "x.py", "conf": "{{ conf }}"}, "Expected a mapping in conf, found text"),
    (livy.batch_with, {"file": "x.py", "py_files": "{{ files }}"}, "Expected a list in py_files, found text"),
    (dataproc.batch_with, object(), "found a value of type object; pass a message as a mapping"),
    (emr.steps_with, "{{ steps }}", "Expected a list in steps, found text"),
    (emr.steps_with, [STEPS[1], STEPS[1]], "Expected one step that runs a Python application"),
    (databricks.submitted_run_with, {"tasks": TASKS}, "Expected one task that runs a Python application"),
    (
        databricks.submitted_run_with,
        {"tasks": [{"notebook_task": {}, "job_cluster_key": "small"}], "job_clusters": []},
        "Expected job_cluster_key 'small' of a task in job_clusters of the run, found []",
    ),
    (
        databricks.submitted_run_with,
        {"tasks": [{"spark_python_task": {"python_file": "x.py"}, "environment_key": "e"}]},
        "Expected environment_key 'e' of a task in environments of the run, found []",
    ),
    (databricks.submitted_run_with, {"notebook_task": {}}, "Expected environment_key in a task on serverless compute"),
]


@pytest.mark.parametrize(("with_additions", "spec", "message"), OF_OTHER_LANGUAGES)
def test_job_in_another_language_is_refused_with_a_way_out(with_additions: Any, spec: Any, message: str) -> None:
    with pytest.raises(InvalidConfigurationError) as refused:
        with_additions(spec, FIRST)
    assert message in str(refused.value)
    assert str(refused.value).startswith("Expected ")
    assert "write it for PySpark, or run it with the operator of Airflow's provider" in str(refused.value)


@pytest.mark.parametrize(("with_additions", "spec", "message"), OTHERS)
def test_specification_without_a_place_is_refused(with_additions: Any, spec: Any, message: str) -> None:
    with pytest.raises(InvalidConfigurationError) as refused:
        with_additions(spec, FIRST)
    assert message in str(refused.value)


@pytest.mark.parametrize("name", ["pythonshell", "glueray"])
def test_job_of_glue_without_spark_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=f"found a job of type {name}"):
        glue.run_with({}, FIRST, {"Command": {"Name": name}})


WITH_OWN_APPLICATION = [
    (kubernetes.spark_application_with, spark_application()),
    (livy.batch_with, {"file": "totals.py"}),
    (dataproc.job_with, JOB),
    (dataproc.batch_with, BATCH),
    (emr.steps_with, STEPS),
    (emr.serverless_job_with, {"sparkSubmit": {"entryPoint": "s3://x/totals.py"}}),
    (glue.run_with, {"--scriptLocation": "s3://x/totals.py"}),
    (databricks.submitted_run_with, ON_NEW_CLUSTER),
    (databricks.submitted_run_with, {**ON_EXISTING, "notebook_task": {"notebook_path": "/x"}}),
    (databricks.submitted_run_with, {**ON_EXISTING, "python_wheel_task": WHEEL}),
]


@pytest.mark.parametrize(("with_additions", "spec"), WITH_OWN_APPLICATION)
def test_stage_beside_an_application_is_refused(with_additions: Any, spec: Any) -> None:
    with pytest.raises(InvalidConfigurationError, match=r"Expected no application in .* next to a stage"):
        with_additions(spec, STAGE)


def test_arguments_without_an_application_are_refused_beside_a_stage() -> None:
    with pytest.raises(InvalidConfigurationError, match="Expected no arguments of an application in file"):
        livy.batch_with({"file": None, "args": ["7"]}, STAGE)


class TestRunOfAJobOfDatabricks:
    @pytest.mark.parametrize(
        ("run", "found"),
        [
            ({"job_id": 7, "jar_params": []}, "jar_params"),
            ({"job_id": 7, "dbt_commands": ["dbt run"]}, "dbt_commands"),
            ({"job_id": 7, "python_params": [], "notebook_params": {}}, "python_params and notebook_params"),
        ],
    )
    def test_with_parameters_of_other_tasks_is_refused(self, run: Any, found: str) -> None:
        with pytest.raises(InvalidConfigurationError, match=f"found {found}; give the driver's task a job of its own"):
            databricks.job_run_with(run, INSTALLED)

    def test_cannot_ship_the_package(self) -> None:
        with pytest.raises(InvalidConfigurationError, match="set ship_package=False"):
            databricks.job_run_with({"job_id": 7}, FIRST)

    def test_cannot_run_a_stage(self) -> None:
        with pytest.raises(InvalidConfigurationError, match="submit the stage with DatabricksSubmitRunOperator"):
            databricks.job_run_with({"job_id": 7}, replace(STAGE, package=None, wheel=None))


def test_notebook_whose_package_is_installed_needs_no_environment() -> None:
    run = databricks.submitted_run_with({"notebook_task": {"notebook_path": "/x"}}, INSTALLED)
    assert run["notebook_task"]["base_parameters"] == {"statecheck-mailbox": FIRST.mailbox}


def test_credentials_in_the_uri_of_an_application_are_not_in_the_message() -> None:
    with pytest.raises(InvalidConfigurationError) as refused:
        livy.batch_with({"file": "https://user:hunter2@host/totals.py"}, STAGE)
    assert "hunter2" not in str(refused.value)


def test_cluster_that_is_a_template_is_refused() -> None:
    with pytest.raises(InvalidConfigurationError, match=r"Expected a mapping in new_cluster\.spark_conf, found text"):
        databricks.submitted_run_with(
            {**ON_NEW_CLUSTER, "new_cluster": {**NEW_CLUSTER, "spark_conf": "{{ conf }}"}}, FIRST
        )
