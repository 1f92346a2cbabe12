"""
The driver's Spark session: how it is started, classified and replaced.

Airflow ends a task by a signal to its process group. A JVM in that group is gone before the stage can say goodbye, so it
gets a session of its own; it still ends with Python, whose death closes its standard input.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_CONNECT_MODULES = "pyspark.sql.connect."


def is_connect(session_or_frame: Any) -> bool:
    """Tell whether a session, or what belongs to one, speaks to a Spark Connect server."""
    return type(session_or_frame).__module__.startswith(_CONNECT_MODULES)


def runs_in_this_process(spark: Any) -> bool:
    """Tell whether all of Spark is this process and its JVM, so that it sees the same files and packages."""
    return not is_connect(spark) and str(spark.conf.get("spark.master", "")).startswith("local")


log = logging.getLogger(__name__)

# Everything else travels over the gateway's socket once the JVM runs.
_NEEDED_AT_START = (
    "spark.master",
    "spark.submit.deployMode",
    "spark.submit.pyFiles",
    "spark.kerberos.keytab",
    "spark.kerberos.principal",
    "spark.driver.memory",
    "spark.driver.memoryOverhead",
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
    _default_worker_python(conf, conf.get("spark.master"))
    if SparkContext._gateway is None:
        start = SparkConf(loadDefaults=False).setAll([(k, conf[k]) for k in _NEEDED_AT_START if k in conf])
        gateway = launch_gateway(start, popen_kwargs={"start_new_session": True})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)
        log.info("Driver JVM started as process %s", jvm_pid())
        # Without an explicit master only the started JVM knows, from its defaults file, where Spark runs.
        _default_worker_python(conf, SparkConf().get("spark.master", "local"))


def start_session(conf: Mapping[str, str], *, app_name: str | None = None, master: str | None = None) -> SparkSession:
    """
    Return a session on a living JVM.

    :param conf: Spark settings.
    :param app_name: The application's name in Spark's own pages.
    :param master: Where Spark runs; ``None`` leaves it to ``conf`` and to Spark's defaults file.
    """
    from pyspark.sql import SparkSession

    options = dict(conf) if master is None else {**conf, "spark.master": master}
    launch_jvm(options)
    # The JVM has resolved what it was started with, packages into jars for instance: do not undo that.
    late: dict[str, Any] = {k: v for k, v in options.items() if k not in _NEEDED_AT_START or k == "spark.master"}
    builder = SparkSession.builder.config(map=late)
    return (builder if app_name is None else builder.appName(app_name)).getOrCreate()


def give_workers_this_python(spark: SparkSession) -> None:
    """
    Let the Python workers of a session that is there already run as those of the operators do.

    In local mode that is this process's own interpreter, unless ``PYSPARK_PYTHON`` or ``spark.pyspark.python`` names
    another. Without it Spark starts whatever ``python3`` is on the path, which need not have this package.
    """
    if is_connect(spark):
        return
    context = spark.sparkContext
    _default_worker_python(dict(context.getConf().getAll()), context.master)
    # The context has read the variable when it was made.
    context.pythonExec = os.environ.get("PYSPARK_PYTHON", context.pythonExec)


def jvm_pid() -> int | None:
    """Return the process id of this process's driver JVM, ``None`` if it started none."""
    process = _gateway_process()
    return process.pid if process is not None else None


def forget_dead_jvm() -> None:
    """Clear what pyspark remembers of a JVM that died; without this no session starts again in this process."""
    process = _gateway_process()
    if not has_jvm_died():
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


def has_jvm_died(wait_seconds: float = 0.0) -> bool:
    """
    Tell whether this process started a driver JVM that has ended; whatever fails then fails for that reason.

    :param wait_seconds: How long to wait for its end; its connections break a moment before.
    """
    process = _gateway_process()
    if process is None:
        return False
    try:
        process.wait(wait_seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _default_worker_python(conf: Mapping[str, str], master: str | None) -> None:
    # The classic driver takes the workers' interpreter from the environment alone. On a cluster this process's own
    # need not exist, so only local mode gets it.
    wanted = conf.get("spark.pyspark.python")
    if wanted is not None:
        os.environ["PYSPARK_PYTHON"] = wanted
    elif master is not None and master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _gateway_process() -> Any:
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext

    return getattr(SparkContext._gateway, "proc", None)


def _accumulator_server(context: Any) -> Any:
    return getattr(context, "_accumulatorServer", None)


_CONNECT_ERRORS = "pyspark.errors.exceptions.connect"
# A server that is gone, or one in its place that does not know the session.
_LOST = re.compile(r"UNAVAILABLE|INVALID_HANDLE|SESSION_NOT_FOUND|SESSION_CHANGED|NO_ACTIVE_SESSION|Connection refused")


def is_server_lost(error: BaseException) -> bool:
    """Tell whether an error, or what caused it, says that the server is gone or was started anew."""
    seen: BaseException | None = error
    while seen is not None:
        if _is_of_client(seen) and _LOST.search(str(seen)):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _is_of_client(error: BaseException) -> bool:
    # A PythonException tells of the user's function, whose own connections are none of ours.
    return type(error).__module__ == _CONNECT_ERRORS and type(error).__name__ != "PythonException"
