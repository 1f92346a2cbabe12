"""The one Spark of a test session, started when the first test asks for it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from airflow_provider_statecheck.spark.versions import to_arrow_schema
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


UNREADABLE = "FAILED_READ_FILE|CRC checksum verification failed"
"""What errors say of a damaged file; before Spark 4.0, only what is wrong."""
_NEW_IN_SQL = {
    "parse_json(": ("4.0", "the type variant"),
    " collate ": ("4.0", "a collation"),
    "named_struct()": ("4.0", "an empty struct"),
}


def needs_spark(version: str, what: str) -> pytest.MarkDecorator:
    """Skip a test on versions of Spark before the one that has what it needs."""
    return pytest.mark.skipif(_is_older(version), reason=f"{what} is new in Spark {version}")


def require_spark_of(query: str) -> None:
    """Skip a test on versions of Spark that do not know what a query uses."""
    for word, (version, what) in _NEW_IN_SQL.items():
        if word in query and _is_older(version):
            pytest.skip(f"{what} is new in Spark {version}")


def _is_older(version: str) -> bool:
    from pyspark import __version__

    return [int(number) for number in __version__.split(".")[:2]] < [int(number) for number in version.split(".")]


def from_arrow(spark: SparkSession, table: pa.Table, schema: Any) -> DataFrame:
    """Return the rows of a table; ``createDataFrame`` takes no tables before Spark 4.0."""
    if hasattr(DataFrame, "toArrow"):
        return spark.createDataFrame(table, schema)
    return spark.createDataFrame([tuple(row.values()) for row in table.to_pylist()], schema)


def to_arrow(frame: Any) -> pa.Table:
    """Return the rows of a DataFrame; ``toArrow`` is new in Spark 4.0."""
    if hasattr(frame, "toArrow"):
        return frame.toArrow()
    batches = frame._collect_as_arrow()
    return pa.Table.from_batches(batches, batches[0].schema if batches else to_arrow_schema(frame.schema))


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
