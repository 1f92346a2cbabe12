"""Where each kind of specification gets the mailbox and the package."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_statecheck.payloads import databricks, dataproc, emr, glue, kubernetes, livy
from airflow_provider_statecheck.payloads.additions import Additions
from tests.unit.payloads.specifications import (
    BATCH,
    CONTAINER,
    FIRST,
    GLUE,
    INSTALLED,
    JOB,
    KEYWORDS,
    KUBERNETES,
    LIVY,
    NEW_CLUSTER,
    NOTEBOOK,
    ON_JOB_CLUSTER,
    ON_NEW_CLUSTER,
    ON_SERVERLESS,
    PROPERTY,
    SCRIPT_ON_EXISTING,
    SCRIPT_TASK,
    SERVERLESS,
    STAGE,
    STEPS,
    SUBMIT_TASK,
    spark_application,
)

MAILBOX = FIRST.mailbox
PACKAGE = FIRST.package
WHEEL = FIRST.wheel
IN_HADOOP = "s3a://lake/checkpoints/packages/airflow_provider_statecheck-0.1.0-aa.zip"
ARGUMENT = f"--statecheck-mailbox={MAILBOX}"


class TestKubernetes:
    def test_property_is_in_spark_conf_and_the_package_among_the_python_files(self) -> None:
        spec = kubernetes.spark_application_with(KUBERNETES, FIRST)["spec"]
        assert spec["sparkConf"] == {**KUBERNETES["spec"]["sparkConf"], PROPERTY: MAILBOX}
        assert spec["deps"]["pyFiles"] == ["s3a://lake/code/helpers.zip", IN_HADOOP]

    def test_specification_without_either_gets_both(self) -> None:
        spec = kubernetes.spark_application_with(spark_application(sparkConf=None, deps=None), FIRST)["spec"]
        assert (spec["sparkConf"], spec["deps"]) == ({PROPERTY: MAILBOX}, {"pyFiles": [IN_HADOOP]})

    def test_stage_is_the_main_application(self) -> None:
        spec = kubernetes.spark_application_with(spark_application(mainApplicationFile=None), STAGE)["spec"]
        assert spec["mainApplicationFile"] == "s3a://lake/checkpoints/packages/cc/statecheck_stage.py"
        assert spec["arguments"] == ["sales:totals"]


def test_livy_has_them_in_conf_and_py_files() -> None:
    batch = livy.batch_with(LIVY, FIRST)
    assert batch["conf"] == {"spark.sql.shuffle.partitions": 8, PROPERTY: MAILBOX}
    assert batch["py_files"] == ["s3a://lake/code/helpers.zip", IN_HADOOP]
    assert batch["args"] == ["--day", "{{ ds }}", 7]


def test_file_of_a_user_with_a_name_like_that_of_the_package_stays() -> None:
    files = ["s3a://lake/airflow_provider_statecheck-notes.py"]
    assert livy.batch_with({**LIVY, "py_files": files}, FIRST)["py_files"] == [*files, IN_HADOOP]


class TestDataproc:
    GOOGLE = Additions(mailbox="gs://lake/mail/3", package="gcs://lake/airflow_provider_statecheck-0.1.0-aa.zip")

    def test_job_has_them_in_pyspark_job(self) -> None:
        job = dataproc.job_with(JOB, self.GOOGLE)["pyspark_job"]
        assert job["properties"] == {"spark.sql.shuffle.partitions": "8", PROPERTY: "gs://lake/mail/3"}
        assert job["python_file_uris"][1:] == ["gs://lake/airflow_provider_statecheck-0.1.0-aa.zip"]

    def test_batch_has_the_property_in_its_runtime(self) -> None:
        batch = dataproc.batch_with(BATCH, self.GOOGLE)
        assert batch["runtime_config"]["properties"] == {
            "spark.executor.instances": "2",
            PROPERTY: "gs://lake/mail/3",
        }
        assert batch["pyspark_batch"]["python_file_uris"] == ["gs://lake/airflow_provider_statecheck-0.1.0-aa.zip"]


class TestEmr:
    def test_step_has_them_before_its_application(self) -> None:
        copied, totals = emr.steps_with(STEPS, FIRST)
        assert copied == STEPS[0]
        assert totals["HadoopJarStep"]["Args"] == [
            *("spark-submit", "--deploy-mode", "cluster", "--verbose", "--conf=spark.a=1"),
            *("--py-files", f"s3://lake/code/helpers.zip,{PACKAGE}", "--conf", "spark.b=2"),
            *("--conf", f"{PROPERTY}={MAILBOX}"),
            *("s3://lake/code/totals.py", "--conf", "of-the-script", "{{ ds }}"),
        ]

    def test_steps_may_be_the_text_of_a_list(self) -> None:
        assert emr.steps_with(repr(STEPS), FIRST) == emr.steps_with(STEPS, FIRST)

    def test_script_is_chosen_among_steps_of_other_languages(self) -> None:
        of_jvm = {
            "HadoopJarStep": {"Jar": "command-runner.jar", "Args": ["spark-submit", "--class", "X", "s3://x.jar"]}
        }
        assert emr.steps_with([of_jvm, STEPS[1]], FIRST) == [of_jvm, emr.steps_with(STEPS, FIRST)[1]]

    def test_stage_is_in_the_step_without_an_application(self) -> None:
        place: dict[str, Any] = {"HadoopJarStep": {"Jar": "command-runner.jar", "Args": ["spark-submit"]}}
        script, stage = emr.steps_with([STEPS[1], place], STAGE)
        assert script == STEPS[1]
        assert stage["HadoopJarStep"]["Args"][-2:] == [STAGE.application, "sales:totals"]

    def test_scheme_is_that_of_amazon(self) -> None:
        package = "s3a://lake/airflow_provider_statecheck-0.1.0-aa.zip"
        changed = emr.serverless_job_with(SERVERLESS, Additions(mailbox=MAILBOX, package=package))
        assert "--py-files s3://lake/airflow_provider" in changed["sparkSubmit"]["sparkSubmitParameters"]

    def test_job_on_eks_has_them_in_its_parameters(self) -> None:
        driver = emr.container_job_with(CONTAINER, FIRST)["sparkSubmitJobDriver"]
        assert driver["sparkSubmitParameters"] == (
            "--conf spark.executor.instances=2 --conf 'spark.x=a b' "
            f"--py-files s3://lake/h.zip,{PACKAGE} --conf {PROPERTY}={MAILBOX}"
        )

    @pytest.mark.parametrize(
        "overrides",
        [
            {
                "applicationConfiguration": [
                    {"classification": "spark-log4j", "properties": {"rootLogger.level": "info"}},
                    {"classification": "spark-defaults", "properties": {"spark.submit.pyFiles": "s3://lake/h.zip"}},
                ]
            }
        ],
    )
    def test_files_of_the_configuration_are_taken_over(self, overrides: dict[str, Any]) -> None:
        driver = emr.serverless_job_with(SERVERLESS, FIRST, overrides)["sparkSubmit"]
        assert driver["sparkSubmitParameters"].startswith(f"--py-files s3://lake/h.zip,{PACKAGE} ")

    @pytest.mark.parametrize(
        "overrides", [None, {}, {"applicationConfiguration": None}, {"monitoringConfiguration": {}}]
    )
    def test_configuration_may_say_nothing(self, overrides: Any) -> None:
        driver = emr.serverless_job_with(SERVERLESS, FIRST, overrides)["sparkSubmit"]
        assert driver["sparkSubmitParameters"] == f"--py-files {PACKAGE} --conf {PROPERTY}={MAILBOX}"


class TestGlue:
    def test_mailbox_is_an_argument_of_its_own_beside_the_conf_of_the_user(self) -> None:
        assert glue.run_with(GLUE, FIRST) == {
            **GLUE,
            "--statecheck-mailbox": MAILBOX,
            "--extra-py-files": f"s3://lake/code/helpers.zip,{PACKAGE}",
        }

    def test_files_of_the_job_are_taken_over_and_its_other_arguments_are_left_to_it(self) -> None:
        job = {"DefaultArguments": {"--conf": "spark.a=1", "--extra-py-files": "s3://lake/h.zip"}}
        assert glue.run_with(None, FIRST, job) == {
            "--statecheck-mailbox": MAILBOX,
            "--extra-py-files": f"s3://lake/h.zip,{PACKAGE}",
        }

    def test_stage_is_the_script_of_the_run(self) -> None:
        assert glue.run_with({}, STAGE) == {
            "--statecheck-mailbox": MAILBOX,
            "--extra-py-files": PACKAGE,
            "--scriptLocation": STAGE.application,
            "--statecheck-stage": "sales:totals",
        }


class TestDatabricks:
    def test_new_cluster_has_the_property_and_the_task_the_wheel(self) -> None:
        assert databricks.submitted_run_with(ON_NEW_CLUSTER, FIRST) == {
            **ON_NEW_CLUSTER,
            "new_cluster": {**NEW_CLUSTER, "spark_conf": {"spark.speculation": True, PROPERTY: MAILBOX}},
            "libraries": [{"pypi": {"package": "tenacity"}}, {"whl": WHEEL}],
        }

    def test_serverless_script_has_an_argument_and_its_environment_the_wheel(self) -> None:
        run = databricks.submitted_run_with(ON_SERVERLESS, FIRST)
        assert run["tasks"][0]["spark_python_task"]["parameters"] == ["--day", "{{ ds }}", ARGUMENT]
        assert run["tasks"][1] == ON_SERVERLESS["tasks"][1]
        assert run["environments"][0] == ON_SERVERLESS["environments"][0]
        assert run["environments"][1]["spec"]["dependencies"] == ["tenacity", WHEEL]

    def test_task_on_a_job_cluster_has_the_property_there(self) -> None:
        run = databricks.submitted_run_with(ON_JOB_CLUSTER, FIRST)
        large, small = run["job_clusters"]
        assert large == ON_JOB_CLUSTER["job_clusters"][0]
        assert small["new_cluster"]["spark_conf"][PROPERTY] == MAILBOX
        assert run["tasks"][0]["libraries"] == [{"whl": WHEEL}]
        assert run["tasks"][0]["notebook_task"] == {"notebook_path": "/etl/totals"}

    def test_notebook_on_an_existing_cluster_has_a_parameter(self) -> None:
        run = databricks.submitted_run_with(NOTEBOOK, FIRST)
        assert run["notebook_task"]["base_parameters"] == {"day": "{{ ds }}", "statecheck-mailbox": MAILBOX}
        assert run["libraries"] == [{"whl": WHEEL}]

    def test_script_on_an_existing_cluster_has_an_argument(self) -> None:
        run = databricks.submitted_run_with(SCRIPT_ON_EXISTING, FIRST)
        assert run["spark_python_task"] == {**SCRIPT_TASK, "parameters": ["--day", "{{ ds }}", ARGUMENT]}

    def test_keywords_of_a_wheel_have_one_that_becomes_the_argument(self) -> None:
        named = databricks.submitted_run_with(KEYWORDS, FIRST)["python_wheel_task"]["named_parameters"]
        assert named == {"day": "{{ ds }}", "statecheck-mailbox": MAILBOX}

    def test_spark_submit_has_both_in_its_parameters_and_leaves_the_cluster(self) -> None:
        run = databricks.submitted_run_with(SUBMIT_TASK, FIRST)
        assert run["new_cluster"] == NEW_CLUSTER
        assert run["spark_submit_task"]["parameters"] == [
            *("--conf", f"spark.submit.pyFiles=s3://lake/h.zip,{PACKAGE}", "--conf", f"{PROPERTY}={MAILBOX}"),
            *("s3://lake/totals.py", "7"),
        ]

    def test_stage_is_a_script(self) -> None:
        run = databricks.submitted_run_with({"existing_cluster_id": "c"}, STAGE)
        assert run["spark_python_task"] == {"python_file": STAGE.application, "parameters": ["sales:totals", ARGUMENT]}

    @pytest.mark.parametrize(
        ("run", "expected"),
        [
            ({"job_id": 7}, {"job_parameters": {"statecheck-mailbox": MAILBOX}}),
            ({"job_id": 7, "python_params": []}, {"python_params": [ARGUMENT]}),
            ({"job_id": 7, "notebook_params": {}}, {"notebook_params": {"statecheck-mailbox": MAILBOX}}),
            ({"job_id": 7, "python_named_params": {}}, {"python_named_params": {"statecheck-mailbox": MAILBOX}}),
            (
                {"job_id": 7, "jar_params": ["x"], "python_params": ["y"]},
                {"jar_params": ["x"], "python_params": ["y", ARGUMENT]},
            ),
        ],
    )
    def test_run_of_a_job_has_a_parameter_of_the_kind_that_is_used(self, run: Any, expected: dict[str, Any]) -> None:
        assert databricks.job_run_with(run, INSTALLED) == {"job_id": 7, **expected}
