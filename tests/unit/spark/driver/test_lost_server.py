from __future__ import annotations

import pytest
from pyspark.errors.exceptions.connect import PythonException, SparkConnectGrpcException

from airflow_provider_statecheck.spark.driver.session import is_server_lost

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
