"""The five steps of R1: each shuffles and sorts lineitem by another key and adds what the neighbours of a row tell."""

from __future__ import annotations

from typing import Any

KEYS = ("l_partkey", "l_suppkey", "l_orderkey", "l_commitdate", "l_receiptdate")


def with_neighbours(frame: Any, key: str) -> Any:
    """Add to each row the price before it and its number among the rows of a key."""
    from pyspark.sql import Window, functions as F

    rows = Window.partitionBy(key).orderBy("l_shipdate", "l_orderkey", "l_linenumber")
    previous, number = F.lag("l_extendedprice").over(rows), F.row_number().over(rows)
    return frame.withColumn(f"previous_by_{key}", previous).withColumn(f"number_by_{key}", number)
