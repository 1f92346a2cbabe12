"""The session of a driver."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.errors.exceptions.connect import PythonException, SparkConnectGrpcException

from airflow_provider_statecheck.spark.driver import session as driver
from airflow_provider_statecheck.spark.driver.session import cores_of, is_server_lost


def session(default: int, **settings: str) -> Any:
    conf = {name.replace("_", "."): value for name, value in settings.items()}
    return SimpleNamespace(conf=conf, sparkContext=SimpleNamespace(defaultParallelism=default))


@pytest.mark.parametrize(
    ("settings", "cores"),
    [
        ({"spark_master": "local[3]"}, 3),
        ({"spark_master": "local[2,3]"}, 2),
        ({"spark_master": "local[*]"}, 200),
        ({"spark_master": "spark://host:7077", "spark_cores_max": "24"}, 24),
        ({"spark_master": "yarn", "spark_executor_instances": "5", "spark_executor_cores": "4"}, 20),
        ({"spark_master": "yarn", "spark_executor_cores": "4"}, 200),
        ({}, 200),
    ],
)
def test_cores_follow_from_the_cluster_rather_than_from_the_default_of_shuffles(settings, cores):
    assert cores_of(session(200, **settings)) == cores


GONE = SparkConnectGrpcException(message="status = StatusCode.UNAVAILABLE: failed to connect")
ANEW = SparkConnectGrpcException(message="[INVALID_HANDLE.SESSION_NOT_FOUND] The handle is invalid. Session not found.")

UDF = PythonException(message="ConnectionRefusedError: [Errno 111] Connection refused")


def caused_by(cause: Exception) -> Exception:
    error = ValueError("in the user's code")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("error", [GONE, ANEW, caused_by(GONE)])
def test_server_that_is_gone_or_new_is_told_from_its_errors(error) -> None:
    assert is_server_lost(error)


@pytest.mark.parametrize(
    "error", [ValueError("UNAVAILABLE"), SparkConnectGrpcException(message="[DIVIDE_BY_ZERO]"), UDF]
)
def test_other_errors_are_not_about_the_server(error) -> None:
    assert not is_server_lost(error)


@pytest.mark.parametrize(("chosen", "then"), [(logging.NOTSET, logging.CRITICAL), (logging.DEBUG, logging.DEBUG)])
def test_a_level_that_a_program_gave_to_py4j_stays(monkeypatch, chosen, then):
    monkeypatch.setattr(SparkContext, "_gateway", object())
    monkeypatch.setattr(driver, "forget_dead_jvm", lambda: None)
    py4j = logging.getLogger("py4j")
    monkeypatch.setattr(py4j, "level", chosen)
    driver.launch_jvm({})
    assert py4j.level == then
