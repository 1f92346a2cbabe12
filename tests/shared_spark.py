"""The one Spark of a test session, started when the first test asks for it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.sessions import start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONF = {
    "spark.master": "local[2]",
    "spark.app.name": "statecheck-tests",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.memory": "2g",
    "spark.python.daemon.module": "tests.worker_daemon",
}


def needs_spark(version: str, what: str) -> pytest.MarkDecorator:
    """Skip a test on versions of Spark before the one that has what it needs."""
    from pyspark import __version__

    is_older = [int(number) for number in __version__.split(".")[:2]] < [int(number) for number in version.split(".")]
    return pytest.mark.skipif(is_older, reason=f"{what} is new in Spark {version}")


@functools.cache
def shared_session() -> SparkSession:
    """Return the session; its JVM ends with this process."""
    session = start_session(CONF)
    session.sparkContext.setLogLevel("ERROR")
    return session


@contextmanager
def setting(spark: SparkSession, key: str, value: str) -> Iterator[None]:
    """Give a session another setting for a while."""
    before = spark.conf.get(key, None)
    spark.conf.set(key, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, before)


def gateway_environment() -> dict[str, str]:
    """Return what lets another process use the same JVM."""
    gateway = shared_session().sparkContext._gateway
    assert gateway is not None
    parameters = gateway.gateway_parameters
    return {
        "PYSPARK_GATEWAY_PORT": str(parameters.port),
        "PYSPARK_GATEWAY_SECRET": str(parameters.auth_token),
    }
