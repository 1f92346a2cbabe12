"""What kind of session it is: where its driver runs, and whether its executors are other processes."""

from __future__ import annotations

from typing import Any

_CONNECT_MODULES = "pyspark.sql.connect."


def is_connect(session_or_frame: Any) -> bool:
    """Tell whether a session, or what belongs to one, speaks to a Spark Connect server."""
    return type(session_or_frame).__module__.startswith(_CONNECT_MODULES)


def runs_in_this_process(spark: Any) -> bool:
    """Tell whether all of Spark is this process and its JVM, so that it sees the same files and packages."""
    return not is_connect(spark) and str(spark.conf.get("spark.master", "")).startswith("local")
