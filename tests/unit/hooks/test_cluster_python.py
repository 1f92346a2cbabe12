from __future__ import annotations

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.hooks.spark import as_cluster_python


def test_runner_takes_the_script_then_its_python_files_then_the_arguments() -> None:
    python = as_cluster_python("/jobs/a.py", ["--day", 3], py_files="/jobs/b.zip,/jobs/c.py", files=None, conf={})
    assert python.application_args == ["/jobs/a.py", "/jobs/b.zip,/jobs/c.py", "--day", "3"]


def test_python_files_are_given_to_the_executors_beside_the_users_own_files_and_settings() -> None:
    python = as_cluster_python("/jobs/a.py", None, py_files="/jobs/b.zip", files="/jobs/x.csv", conf={"spark.a": "1"})
    assert python.files == "/jobs/x.csv,/jobs/b.zip"
    assert python.conf == {"spark.a": "1", "spark.submit.pyFiles": "/jobs/b.zip"}


def test_without_python_files_nothing_is_added() -> None:
    python = as_cluster_python("file:///jobs/a.py", None, py_files=None, files=None, conf={})
    assert (python.application_args, python.files, python.conf) == (["file:///jobs/a.py", ""], None, {})


@pytest.mark.parametrize("script", ["s3://bucket/a.py", "a.py", "hdfs:///jobs/a.py", "https://host/a.py"])
def test_script_that_a_worker_does_not_fetch_is_refused(script: str) -> None:
    with pytest.raises(InvalidConfigurationError, match="absolute paths that every worker can read"):
        as_cluster_python(script, None, py_files=None, files=None, conf={})


def test_python_file_that_a_worker_does_not_fetch_is_refused() -> None:
    with pytest.raises(InvalidConfigurationError, match=r"s3://bucket/b\.zip"):
        as_cluster_python("/jobs/a.py", None, py_files="/jobs/c.zip,s3://bucket/b.zip", files=None, conf={})
