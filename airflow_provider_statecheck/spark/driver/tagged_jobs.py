"""Spark jobs that can be cancelled from any thread, by a job tag."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.spark.driver.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class TaggedJobs:
    """
    Runs Spark jobs under a job tag.

    :param spark: The session.
    """

    def __init__(self, spark: SparkSession) -> None:
        tag = f"statecheck-{uuid.uuid4().hex}"
        self._tags: _SessionTag | _ContextTag = (
            _SessionTag(spark, tag) if is_connect(spark) else _ContextTag(spark, tag)
        )

    @contextmanager
    def tagged(self) -> Iterator[None]:
        """Give the tag to the jobs that this thread starts during the block."""
        self._tags.add()
        try:
            yield
        finally:
            self._tags.remove()

    def collect(self, frame: DataFrame) -> list[Any]:
        """Run a job and return its rows; only this job of the thread has the tag."""
        with self.tagged():
            return frame.collect()

    def cancel(self) -> None:
        """Cancel the running jobs, if there are any; may be called from any thread."""
        self._tags.cancel()


class _SessionTag:
    """A job tag of a Spark Connect session."""

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
    """A job tag of the Spark context; tags of a classic session are visible only to the thread that added them."""

    def __init__(self, spark: SparkSession, tag: str) -> None:
        self._context = spark.sparkContext
        self._tag = tag

    def add(self) -> None:
        self._context.addJobTag(self._tag)

    def remove(self) -> None:
        self._context.removeJobTag(self._tag)

    def cancel(self) -> None:
        self._context.cancelJobsWithTag(self._tag)
