"""Each operator of a service: its stand-in, the connection to it, and a job in the form that the service has."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from airflow.providers.amazon.aws.hooks.emr import EmrContainerHook, EmrHook, EmrServerlessHook
from airflow.providers.amazon.aws.hooks.glue import GlueJobHook

from tests.services.amazon import REGION, ROLE, amazon
from tests.services.databricks import databricks
from tests.services.drivers import SubmittedDrivers
from tests.services.kubernetes import kubernetes
from tests.services.livy import livy
from tests.services.task import APPLICATION

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """One operator."""

    name: str
    operator: str
    arguments: Callable[[Path, str], Arguments]
    """What its task has as arguments, of the folder and the trouble of the application."""
    serve: Callable[[Any, SubmittedDrivers], Any]
    """Serves its service, named in a connection, while a block runs."""
    reconnects: bool = True
    """Whether a retry finds a job that still runs, if it does not defer."""


def words(work: Path, trouble: str) -> list[str]:
    return [str(work), trouble]


# Livy


def serve_livy(connections: Any, drivers: SubmittedDrivers) -> Any:
    """Serve Livy, named in its default connection."""
    connections.name("livy_default", conn_type="livy", host=connections.serve(livy(drivers)))
    return nullcontext()


def _livy(work: Path, trouble: str) -> Arguments:
    return {"file": APPLICATION.as_uri(), "args": words(work, trouble), "polling_interval": 1}


# Databricks

_JOB = 7
_REFERENCE = "--statecheck-mailbox={{job.parameters.`statecheck-mailbox`}}"


def serve_databricks(connections: Any, drivers: SubmittedDrivers, jobs: Any = None) -> Any:
    """Serve Databricks with jobs, named in its default connection."""
    address = urlsplit(connections.serve(databricks(drivers, jobs)))
    connections.name(
        "databricks_default",
        conn_type="databricks",
        schema=address.scheme,
        host=address.hostname,
        port=address.port,
        password="t",
    )
    return nullcontext()


def _submitted_run(work: Path, trouble: str) -> Arguments:
    script = {"python_file": APPLICATION.as_uri(), "parameters": words(work, trouble)}
    cluster = {"spark_version": "17.3.x-scala2.13", "num_workers": 2}
    return {"new_cluster": cluster, "spark_python_task": script, "polling_period_seconds": 1}


def _serve_job(connections: Any, drivers: SubmittedDrivers) -> Any:
    script = {"python_file": APPLICATION.as_uri(), "parameters": [_REFERENCE]}
    tasks = [{"task_key": "t", "spark_python_task": script}]
    return serve_databricks(connections, drivers, {_JOB: {"name": "totals", "tasks": tasks}})


def _job_run(work: Path, trouble: str) -> Arguments:
    return {"job_id": _JOB, "python_params": words(work, trouble), "polling_period_seconds": 1}


# Amazon


@contextmanager
def serve_amazon(connections: Any, drivers: SubmittedDrivers) -> Iterator[None]:
    """Serve Amazon's services, named in their default connection."""
    with amazon(drivers) as url:
        extra = {"endpoint_url": url, "region_name": REGION}
        connections.name("aws_default", conn_type="aws", login="key", password="secret", extra=extra)
        yield


def _steps(work: Path, trouble: str) -> Arguments:
    cluster = EmrHook().conn.run_job_flow(
        Name="nightly",
        Instances={"InstanceCount": 1, "KeepJobFlowAliveWhenNoSteps": True, "MasterInstanceType": "m7g.xlarge"},
        JobFlowRole="jobs",
        ServiceRole="jobs",
    )["JobFlowId"]
    arguments = ["spark-submit", "--deploy-mode", "cluster", APPLICATION.as_uri(), *words(work, trouble)]
    step = {"Name": "totals", "HadoopJarStep": {"Jar": "command-runner.jar", "Args": arguments}}
    return {"job_flow_id": cluster, "steps": [step], "waiter_delay": 1, "waiter_max_attempts": 300}


def _on_eks(work: Path, trouble: str) -> Arguments:
    provider = {"id": "eks", "type": "EKS", "info": {"eksInfo": {"namespace": "etl"}}}
    cluster = EmrContainerHook().conn.create_virtual_cluster(name="etl", containerProvider=provider)["id"]
    driver = {"entryPoint": APPLICATION.as_uri(), "entryPointArguments": words(work, trouble)}
    return {
        "name": "totals",
        "virtual_cluster_id": cluster,
        "execution_role_arn": ROLE,
        "release_label": "emr-8.0.0-latest",
        "job_driver": {"sparkSubmitJobDriver": driver},
        "poll_interval": 1,
    }


def _serverless(work: Path, trouble: str) -> Arguments:
    conn = EmrServerlessHook().conn
    application = conn.create_application(name="etl", releaseLabel="emr-8.0.0", type="SPARK")["applicationId"]
    driver = {"entryPoint": APPLICATION.as_uri(), "entryPointArguments": words(work, trouble)}
    return {
        "application_id": application,
        "execution_role_arn": ROLE,
        "job_driver": {"sparkSubmit": driver},
        "configuration_overrides": {},
        "waiter_delay": 1,
        "waiter_max_attempts": 300,
    }


_GLUE_SCRIPT = f"""
import runpy, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
sys.argv = [sys.argv[0], given["--work"], given["--trouble"], "--statecheck-mailbox", given["--statecheck-mailbox"]]
runpy.run_path({str(APPLICATION)!r}, run_name="__main__")
"""


def _glue(work: Path, trouble: str) -> Arguments:
    script = work / "glue.py"
    script.write_text(_GLUE_SCRIPT)
    command = {"Name": "glueetl", "ScriptLocation": script.as_uri()}
    GlueJobHook(job_name="totals").conn.create_job(Name="totals", Role="jobs", Command=command)
    arguments = {"--work": str(work), "--trouble": trouble}
    return {"job_name": "totals", "script_args": arguments, "job_poll_interval": 1, "waiter_delay": 1}


# Kubernetes


def serve_kubernetes(connections: Any, drivers: SubmittedDrivers) -> Any:
    """Serve a cluster with the Spark operator, named in its default connection."""
    user = {"name": "airflow", "context": {"cluster": "small", "user": "airflow"}}
    config = {
        "clusters": [{"name": "small", "cluster": {"server": connections.serve(kubernetes(drivers))}}],
        "users": [{"name": "airflow", "user": {"token": "t"}}],
        "contexts": [user],
        "current-context": "airflow",
    }
    connections.name("kubernetes_default", conn_type="kubernetes", extra={"kube_config": json.dumps(config)})
    return nullcontext()


def _application(work: Path, trouble: str) -> Arguments:
    spec = {
        "type": "Python",
        "mainApplicationFile": f"local://{APPLICATION}",
        "arguments": words(work, trouble),
        "driver": {"cores": 1},
        "executor": {"instances": 1},
    }
    body = {"apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication", "spec": spec}
    return {"name": "totals", "namespace": "etl", "template_spec": {"spark": body}, "poll_interval": 1}


# Google


@contextmanager
def serve_dataproc(connections: Any, drivers: SubmittedDrivers) -> Iterator[None]:
    """Serve Dataproc, to which the clients of Google's provider are led."""
    from tests.services.dataproc import dataproc

    connections.name("google_cloud_default", conn_type="google_cloud_platform", extra={"is_anonymous": True})
    with dataproc(drivers) as variables:
        for name, value in variables.items():
            connections.set(name, value)
        yield


_PLACE = {"region": "europe-west1", "project_id": "shop"}


def _dataproc_job(work: Path, trouble: str) -> Arguments:
    pyspark = {"main_python_file_uri": APPLICATION.as_uri(), "args": words(work, trouble)}
    job = {"placement": {"cluster_name": "nightly"}, "pyspark_job": pyspark}
    return {"job": job, "polling_interval_seconds": 1, **_PLACE}


def _batch(work: Path, trouble: str) -> Arguments:
    pyspark = {"main_python_file_uri": APPLICATION.as_uri(), "args": words(work, trouble)}
    return {"batch": {"pyspark_batch": pyspark}, "polling_interval_seconds": 1, **_PLACE}


KINDS = (
    Kind("livy", "CheckpointedLivyOperator", _livy, serve_livy),
    Kind("databricks", "CheckpointedDatabricksSubmitRunOperator", _submitted_run, serve_databricks),
    Kind("databricks job", "CheckpointedDatabricksRunNowOperator", _job_run, _serve_job),
    Kind("emr", "CheckpointedEmrAddStepsOperator", _steps, serve_amazon, reconnects=False),
    Kind("emr on eks", "CheckpointedEmrContainerOperator", _on_eks, serve_amazon, reconnects=False),
    Kind("emr serverless", "CheckpointedEmrServerlessStartJobOperator", _serverless, serve_amazon, reconnects=False),
    Kind("glue", "CheckpointedGlueJobOperator", _glue, serve_amazon),
    Kind("kubernetes", "CheckpointedSparkKubernetesOperator", _application, serve_kubernetes),
    Kind("dataproc", "CheckpointedDataprocSubmitJobOperator", _dataproc_job, serve_dataproc, reconnects=False),
    Kind("dataproc batch", "CheckpointedDataprocCreateBatchOperator", _batch, serve_dataproc, reconnects=False),
)
