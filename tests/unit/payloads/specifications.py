"""Specifications of jobs in the forms that the documentation of the services and of Airflow's providers shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_statecheck.payloads import databricks, dataproc, emr, glue, kubernetes, livy
from airflow_provider_statecheck.payloads.additions import Additions

FIRST = Additions(
    mailbox="s3://lake/checkpoints/0f/mail/0f/3",
    package="s3://lake/checkpoints/packages/airflow_provider_statecheck-0.1.0-aa.zip",
    wheel="s3://lake/checkpoints/packages/aa/airflow_provider_statecheck-0.1.0-py3-none-any.whl",
)
RETRY = Additions(
    mailbox="s3://lake/checkpoints/0f/mail/0f/4",
    package="s3://lake/checkpoints/packages/airflow_provider_statecheck-0.2.0-bb.zip",
    wheel="s3://lake/checkpoints/packages/bb/airflow_provider_statecheck-0.2.0-py3-none-any.whl",
)
INSTALLED = Additions(mailbox=FIRST.mailbox)
STAGE = replace(FIRST, application="s3://lake/checkpoints/packages/cc/statecheck_stage.py", arguments=("sales:totals",))
PROPERTY = "spark.statecheck.mailbox"


@dataclass(frozen=True)
class Kind:
    """A kind of specification with an example, and one that a stage fits into."""

    with_additions: Callable[[Any, Additions], Any]
    example: Any
    of_stage: Any = None
    can_ship: bool = True


def spark_application(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
        "kind": "SparkApplication",
        "metadata": {"name": "daily-totals", "namespace": "etl", "labels": {"team": "sales"}},
        "spec": {
            "type": "Python",
            "mode": "cluster",
            "image": "registry/spark-py:4.1",
            "mainApplicationFile": "local:///opt/app/totals.py",
            "sparkVersion": "4.1.0",
            "restartPolicy": {"type": "Never"},
            "driver": {"cores": 1, "memory": "2g", "serviceAccount": "spark"},
            "executor": {"instances": 2, "memory": "2g"},
            **spec,
        },
    }


KUBERNETES = spark_application(
    arguments=["--day", "{{ ds }}"],
    sparkConf={"spark.eventLog.enabled": "true", "spark.sql.shuffle.partitions": 8},
    deps={"jars": ["s3a://lake/jars/x.jar"], "pyFiles": ["s3a://lake/code/helpers.zip"]},
)
LIVY = {
    "file": "s3a://lake/code/totals.py",
    "class_name": None,
    "args": ["--day", "{{ ds }}", 7],
    "jars": None,
    "py_files": ("s3a://lake/code/helpers.zip",),
    "driver_memory": "2g",
    "num_executors": 2,
    "name": "totals-{{ ts_nodash }}",
    "conf": {"spark.sql.shuffle.partitions": 8},
    "proxy_user": None,
}
JOB = {
    "reference": {"project_id": "shop"},
    "placement": {"cluster_name": "nightly"},
    "labels": {"team": "sales"},
    "pyspark_job": {
        "main_python_file_uri": "gs://lake/code/totals.py",
        "args": ["--day", "{{ ds }}"],
        "python_file_uris": ["gs://lake/code/helpers.zip"],
        "properties": {"spark.sql.shuffle.partitions": "8"},
    },
}
BATCH = {
    "pyspark_batch": {
        "main_python_file_uri": "gs://lake/code/totals.py",
        "args": ["--day", "{{ ds }}"],
        "jar_file_uris": ["gs://lake/jars/x.jar"],
    },
    "runtime_config": {"version": "3.0", "properties": {"spark.executor.instances": "2"}},
    "environment_config": {"execution_config": {"subnetwork_uri": "default"}},
    "labels": None,
}
STEPS = [
    {
        "Name": "copy",
        "ActionOnFailure": "CONTINUE",
        "HadoopJarStep": {"Jar": "command-runner.jar", "Args": ["s3-dist-cp", "--src", "s3://a/x", "--dest", "/x"]},
    },
    {
        "Name": "totals",
        "ActionOnFailure": "CONTINUE",
        "HadoopJarStep": {
            "Jar": "command-runner.jar",
            "Args": [
                *("spark-submit", "--deploy-mode", "cluster", "--verbose", "--conf=spark.a=1"),
                *("--py-files", "s3://lake/code/helpers.zip", "--conf", "spark.b=2"),
                *("s3://lake/code/totals.py", "--conf", "of-the-script", "{{ ds }}"),
            ],
        },
    },
]
CONTAINER = {
    "sparkSubmitJobDriver": {
        "entryPoint": "s3://lake/code/totals.py",
        "entryPointArguments": ["{{ ds }}"],
        "sparkSubmitParameters": "--conf spark.executor.instances=2 --conf 'spark.x=a b' --py-files s3://lake/h.zip",
    }
}
SERVERLESS = {"sparkSubmit": {"entryPoint": "s3://lake/code/totals.py", "entryPointArguments": ["{{ ds }}"]}}
GLUE = {"--day": "{{ ds }}", "--conf": "spark.a=1 --conf spark.b=2", "--extra-py-files": "s3://lake/code/helpers.zip"}
NEW_CLUSTER = {
    "spark_version": "17.3.x-scala2.13",
    "node_type_id": "m7g.xlarge",
    "num_workers": 2,
    "spark_conf": {"spark.speculation": True},
}
SCRIPT_TASK = {"python_file": "dbfs:/code/totals.py", "parameters": ["--day", "{{ ds }}"]}
ON_NEW_CLUSTER = {
    "run_name": "totals",
    "new_cluster": NEW_CLUSTER,
    "spark_python_task": SCRIPT_TASK,
    "libraries": [{"pypi": {"package": "tenacity"}}],
    "timeout_seconds": 3600,
}
ON_SERVERLESS: Any = {
    "tasks": [
        {"task_key": "totals", "spark_python_task": SCRIPT_TASK, "environment_key": "default"},
        {"task_key": "report", "sql_task": {"query": {"query_id": "q"}}, "depends_on": [{"task_key": "totals"}]},
    ],
    "environments": [
        {"environment_key": "other", "spec": {"environment_version": "4"}},
        {"environment_key": "default", "spec": {"environment_version": "4", "dependencies": ["tenacity"]}},
    ],
}
ON_JOB_CLUSTER: Any = {
    "tasks": [{"task_key": "totals", "notebook_task": {"notebook_path": "/etl/totals"}, "job_cluster_key": "small"}],
    "job_clusters": [
        {"job_cluster_key": "large", "new_cluster": {"num_workers": 64}},
        {"job_cluster_key": "small", "new_cluster": NEW_CLUSTER},
    ],
}
NOTEBOOK = {
    "existing_cluster_id": "1130-120000-abc",
    "notebook_task": {"notebook_path": "/etl/totals", "base_parameters": {"day": "{{ ds }}"}},
}
SCRIPT_ON_EXISTING = {"existing_cluster_id": "1130-120000-abc", "spark_python_task": SCRIPT_TASK}
WHEEL = {"package_name": "totals", "entry_point": "run"}
KEYWORDS = {"existing_cluster_id": "c", "python_wheel_task": {**WHEEL, "named_parameters": {"day": "{{ ds }}"}}}
POSITIONS = {"existing_cluster_id": "c", "python_wheel_task": {**WHEEL, "parameters": ["{{ ds }}"]}}
SUBMIT_TASK = {
    "new_cluster": NEW_CLUSTER,
    "spark_submit_task": {"parameters": ["--conf", "spark.submit.pyFiles=s3://lake/h.zip", "s3://lake/totals.py", "7"]},
}

KINDS = {
    "SparkApplication": Kind(
        kubernetes.spark_application_with, KUBERNETES, spark_application(mainApplicationFile=None, deps=None)
    ),
    "template_spec": Kind(
        kubernetes.spark_application_with,
        {"spark": KUBERNETES, "kubernetes": {"in_cluster": True}},
        {"spark": spark_application(mainApplicationFile="")},
    ),
    "Livy batch": Kind(livy.batch_with, LIVY, {**LIVY, "file": "", "args": None}),
    "Dataproc job": Kind(dataproc.job_with, JOB, {**JOB, "pyspark_job": {"properties": None}}),
    "Dataproc batch": Kind(dataproc.batch_with, BATCH, {"pyspark_batch": {}}),
    "EMR steps": Kind(
        emr.steps_with,
        STEPS,
        [STEPS[0], {"HadoopJarStep": {"Jar": "command-runner.jar", "Args": ["spark-submit", "--verbose"]}}],
    ),
    "EMR on EKS": Kind(emr.container_job_with, CONTAINER, {"sparkSubmitJobDriver": {"entryPoint": ""}}),
    "EMR Serverless": Kind(emr.serverless_job_with, SERVERLESS, {"sparkSubmit": {"entryPoint": None}}),
    "Glue run": Kind(glue.run_with, GLUE, {}),
    "Databricks, new cluster": Kind(databricks.submitted_run_with, ON_NEW_CLUSTER, {"new_cluster": NEW_CLUSTER}),
    "Databricks, serverless": Kind(
        databricks.submitted_run_with,
        ON_SERVERLESS,
        {**ON_SERVERLESS, "tasks": [{"task_key": "totals", "environment_key": "default"}]},
    ),
    "Databricks, job cluster": Kind(databricks.submitted_run_with, ON_JOB_CLUSTER),
    "Databricks, notebook": Kind(databricks.submitted_run_with, NOTEBOOK),
    "Databricks, script on existing cluster": Kind(
        databricks.submitted_run_with, SCRIPT_ON_EXISTING, {"existing_cluster_id": "c"}
    ),
    "Databricks, keywords of a wheel": Kind(databricks.submitted_run_with, KEYWORDS),
    "Databricks, arguments of a wheel": Kind(databricks.submitted_run_with, POSITIONS),
    "Databricks, spark-submit": Kind(
        databricks.submitted_run_with,
        SUBMIT_TASK,
        {"new_cluster": NEW_CLUSTER, "spark_submit_task": {"parameters": ["--verbose"]}},
    ),
    "Databricks job, job parameters": Kind(
        databricks.job_run_with, {"job_id": 7, "job_parameters": {"day": "{{ ds }}"}}, can_ship=False
    ),
    "Databricks job, nothing": Kind(databricks.job_run_with, {"job_name": "totals"}, can_ship=False),
    "Databricks job, arguments": Kind(
        databricks.job_run_with, {"job_id": 7, "python_params": ["{{ ds }}"]}, can_ship=False
    ),
    "Databricks job, notebook": Kind(
        databricks.job_run_with, {"job_id": 7, "notebook_params": {"day": "{{ ds }}"}}, can_ship=False
    ),
    "Databricks job, spark-submit": Kind(
        databricks.job_run_with, {"job_id": 7, "spark_submit_params": ["s3://lake/totals.py"]}, can_ship=False
    ),
}
