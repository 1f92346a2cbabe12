"""
The driver's JVM: started apart from the task's process group, and replaced when it died.

Airflow ends a task by a signal to its process group. A JVM in that group is gone before the stage can say goodbye, so it
gets a session of its own; it still ends with Python, whose death closes its standard input.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_NEEDED_AT_START = (
    "spark.driver.memory",
    "spark.driver.defaultJavaOptions",
    "spark.driver.extraClassPath",
    "spark.driver.extraJavaOptions",
    "spark.driver.extraLibraryPath",
    "spark.jars",
    "spark.jars.packages",
    "spark.jars.repositories",
    "spark.jars.excludes",
    "spark.jars.ivy",
    "spark.jars.ivySettings",
    "spark.plugins",
)


def launch_jvm(conf: Mapping[str, str]) -> None:
    """
    Make sure that this process has a living driver JVM.

    :param conf: Spark settings; only those that must be known when a JVM starts reach its command line, which every user
        of the machine can read.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    forget_dead_jvm()
    logging.getLogger("py4j").setLevel(logging.ERROR)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if SparkContext._gateway is None:
        start = SparkConf(loadDefaults=False).setAll([(k, conf[k]) for k in _NEEDED_AT_START if k in conf])
        gateway = launch_gateway(start, popen_kwargs={"start_new_session": True})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)
        log.info("Driver JVM started as process %s", jvm_pid())


def start_session(conf: Mapping[str, str]) -> SparkSession:
    """
    Return a session on a living JVM.

    :param conf: Spark settings.
    """
    from pyspark.sql import SparkSession

    launch_jvm(conf)
    return SparkSession.builder.config(map=dict(conf)).getOrCreate()


def jvm_pid() -> int | None:
    """Return the process id of this process's driver JVM, ``None`` if it started none."""
    process = _gateway_process()
    return process.pid if process is not None else None


def forget_dead_jvm() -> None:
    """Clear what pyspark remembers of a JVM that died; without this no session starts again in this process."""
    process = _gateway_process()
    if process is None or process.poll() is None:
        return
    log.warning("The driver JVM %s has died (status %s); it is replaced.", process.pid, process.returncode)
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway, accumulators = SparkContext._gateway, _accumulator_server(SparkContext._active_spark_context)
    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None
    if gateway is not None:
        gateway.shutdown()
    if accumulators is not None:
        accumulators.shutdown()


def is_connection_lost(error: BaseException | None) -> bool:
    """Tell whether an error, or one that caused it, says that the driver JVM is gone."""
    from py4j.protocol import Py4JNetworkError

    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, Py4JNetworkError | ConnectionError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _gateway_process() -> Any:
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext

    return getattr(SparkContext._gateway, "proc", None)


def _accumulator_server(context: Any) -> Any:
    return getattr(context, "_accumulatorServer", None)
