"""Settings of Spark that a stage needs while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS_PER_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
_SPARKS_DEFAULT = "10000"
_WANTED = "65536"


@contextmanager
def stage_settings_applied(spark: SparkSession) -> Iterator[None]:
    """
    Let Spark send rows to Python in larger batches, unless somebody chose their size, and undo that afterwards.

    Batches of Spark's default size cost as much for their making as for their content.
    """
    before = spark.conf.get(_ROWS_PER_BATCH, _SPARKS_DEFAULT)
    if before != _SPARKS_DEFAULT:
        yield
        return
    spark.conf.set(_ROWS_PER_BATCH, _WANTED)
    try:
        yield
    except BaseException:
        # A session that was lost has nothing to undo, and must not hide why the stage failed.
        with suppress(Exception):
            spark.conf.set(_ROWS_PER_BATCH, before)
        raise
    spark.conf.set(_ROWS_PER_BATCH, before)
