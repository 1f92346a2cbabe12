"""Common settings of the sides on Spark."""

from __future__ import annotations

from typing import Any

CONF = {
    "spark.master": "local[2]",
    "spark.driver.memory": "4g",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
COLUMNS = "l_suppkey bigint, l_partkey bigint, l_orderkey bigint, price double"
"""Columns of the CSV files."""


def prices(key: str, spark: Any, files: str) -> Any:
    """Return a key of lineitem and the price as a double, which is faster in Python than a decimal."""
    return spark.read.parquet(files).selectExpr(key, "cast(l_extendedprice as double) as price")
