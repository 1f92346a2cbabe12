"""The Spark jobs of increments, which end early when what they compute is of no use any more."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.spark.driver.sessions import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class IncrementJobs:
    """
    Runs jobs one after the other under a tag of their own.

    :param spark: The session that computes.
    """

    def __init__(self, spark: SparkSession) -> None:
        tag = f"statecheck-{uuid.uuid4().hex}"
        self._tags: _SessionTag | _ContextTag = (
            _SessionTag(spark, tag) if is_connect(spark) else _ContextTag(spark, tag)
        )

    def collect(self, frame: DataFrame) -> list[Any]:
        """Run a job and return its rows; other jobs of this thread are not tagged."""
        self._tags.add()
        try:
            return frame.collect()
        finally:
            self._tags.remove()

    def cancel(self) -> None:
        """Cancel the job that runs, from any thread; without one nothing happens."""
        self._tags.cancel()


class _SessionTag:
    """A tag as Spark Connect has them."""

    def __init__(self, spark: SparkSession, tag: str) -> None:
        self._spark = spark
        self._tag = tag

    def add(self) -> None:
        self._spark.addTag(self._tag)

    def remove(self) -> None:
        self._spark.removeTag(self._tag)

    def cancel(self) -> None:
        self._spark.interruptTag(self._tag)


class _ContextTag:
    """A tag of the driver's own context, where those of a session are known to the thread alone that gave them."""

    def __init__(self, spark: SparkSession, tag: str) -> None:
        self._context = spark.sparkContext
        self._tag = tag

    def add(self) -> None:
        self._context.addJobTag(self._tag)

    def remove(self) -> None:
        self._context.removeJobTag(self._tag)

    def cancel(self) -> None:
        self._context.cancelJobsWithTag(self._tag)
