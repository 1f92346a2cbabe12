"""What Spark knows of a DataFrame that it has cached."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_STATISTICS = re.compile(r"Statistics\(sizeInBytes=([\d.]+(?:E[+-]?\d+)?) ([KMGTPE]?)i?B")
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}


def is_cached(frame: DataFrame) -> bool:
    """Tell whether somebody has asked Spark to keep this DataFrame."""
    level = frame.storageLevel
    return level.useMemory or level.useDisk


def cached_bytes(frame: DataFrame) -> int | None:
    """Return how large a cached and computed DataFrame is, ``None`` if Spark does not say."""
    # A new query: one that was planned before it was cached would go on to tell of its sources.
    return explained_bytes(_explained(frame.select("*")))


def explained_bytes(explained: str) -> int | None:
    """
    Return the size of the cached relation at the top of a plan.

    :param explained: What ``explain("cost")`` prints.
    """
    top = next((line for line in explained.splitlines() if line and not line.startswith("==")), "")
    found = _STATISTICS.search(explained)
    if found is None or not top.startswith("InMemoryRelation"):
        return None
    return int(float(found.group(1)) * 1024 ** _POWERS[found.group(2)])


def _explained(frame: Any) -> str:
    if hasattr(frame, "_jdf"):
        query = frame._jdf.queryExecution()
        return str(frame.sparkSession._jvm.org.apache.spark.sql.api.python.PythonSQLUtils.explainString(query, "cost"))
    return str(frame._explain_string(mode="cost"))
