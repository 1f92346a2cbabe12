"""Five steps of R1: each shuffles and sorts lineitem by another key and adds columns from neighbouring rows."""

from __future__ import annotations

from typing import Any

KEYS = ("l_partkey", "l_suppkey", "l_orderkey", "l_commitdate", "l_receiptdate")


def with_neighbours(frame: Any, key: str) -> Any:
    """Add the price of the previous row and the row number within its key to each row."""
    from pyspark.sql import Window, functions as F

    rows = Window.partitionBy(key).orderBy("l_shipdate", "l_orderkey", "l_linenumber")
    previous, number = F.lag("l_extendedprice").over(rows), F.row_number().over(rows)
    return frame.withColumn(f"previous_by_{key}", previous).withColumn(f"number_by_{key}", number)
