"""
Spark session of a driver: its start and its kind, and interruptible work in it.

Airflow terminates a task with a signal to its process group. The JVM therefore runs in a separate process session, and
is still available when the stage closes its attempt. It exits with Python, whose end closes its standard input.

Python runs signal handlers in the main thread only. A main thread that waits inside py4j runs them only after the Spark
job ends. The stage therefore runs in a separate thread, and the main thread waits interruptibly.
"""

from __future__ import annotations

import contextvars
import functools
import logging
import os
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from airflow_provider_statecheck.checkpoint.masking import remember_secrets, secrets_in_settings
from airflow_provider_statecheck.exceptions import errors_before
from airflow_provider_statecheck.spark.versions import inheriting_thread, is_connect, settings_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


log = logging.getLogger(__name__)

_CONNECT_ERRORS = "pyspark.errors.exceptions.connect"
# Errors of a lost server, and of a restarted server that does not know the session.
_SERVER_LOST = re.compile(
    r"UNAVAILABLE|INVALID_HANDLE|SESSION_NOT_FOUND|SESSION_CHANGED|NO_ACTIVE_SESSION|Connection refused"
)

_STARTING = threading.Lock()

_LOCAL_MASTER = re.compile(r"local\[(\d+)(?:,\s*\d+)?\]")
_ASSUMED_CORES = 8

# Settings for the command line of the JVM; all others are sent over the gateway's socket.
NEEDED_AT_START = (
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


def tasks_at_once(spark: SparkSession) -> int:
    """Return the default parallelism of a session."""
    if is_connect(spark):
        return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    return int(spark.sparkContext.defaultParallelism)


def cores_of(spark: SparkSession) -> int:
    """
    Return the number of tasks that a session runs at once, as far as its settings tell.

    Otherwise it is the default parallelism, and over Spark Connect, where a client does not know that, 8.
    """
    found = _configured_cores(spark)
    if found is not None:
        return found
    return _ASSUMED_CORES if is_connect(spark) else int(spark.sparkContext.defaultParallelism)


def _configured_cores(spark: SparkSession) -> int | None:
    local = _LOCAL_MASTER.fullmatch(str(spark.conf.get("spark.master", "")))
    if local is not None:
        return int(local.group(1))
    in_all = spark.conf.get("spark.cores.max", None)
    if in_all:
        return int(in_all)
    instances, each = (spark.conf.get(name, None) for name in ("spark.executor.instances", "spark.executor.cores"))
    return int(instances) * int(each) if instances and each else None


def runs_in_this_process(spark: Any) -> bool:
    """Return whether Spark runs in local mode, with the files and packages of this process."""
    return not is_connect(spark) and str(spark.conf.get("spark.master", "")).startswith("local")


def launch_jvm(conf: Mapping[str, str]) -> None:
    """
    Start the driver JVM of this process if it is not running.

    :param conf: Spark settings. Only the settings needed at start are put on the command line of the JVM, which every
        user of the machine can read.
    """
    # The start that a signal interrupted goes on in its thread, and the next one in this process takes its JVM.
    with _STARTING:
        _launch_jvm(conf)


def _launch_jvm(conf: Mapping[str, str]) -> None:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    forget_dead_jvm()
    _quieten_py4j()
    _default_worker_python(conf, conf.get("spark.master"))
    if SparkContext._gateway is None:
        start = SparkConf(loadDefaults=False).setAll([(k, conf[k]) for k in NEEDED_AT_START if k in conf])
        gateway = launch_gateway(start, popen_kwargs={"start_new_session": True})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)
        log.info("Driver JVM started as process %s", jvm_pid())
        # The JVM has read the defaults file, which may set the master.
        _default_worker_python(conf, SparkConf().get("spark.master", "local"))


def _quieten_py4j() -> None:
    # A dead JVM makes each of its calls log a traceback; the error itself reaches the caller. A level of the program
    # wins.
    py4j = logging.getLogger("py4j")
    if py4j.level == logging.NOTSET:
        py4j.setLevel(logging.CRITICAL)


def open_session(conf: Mapping[str, str]) -> SparkSession:
    """Return a session with these settings, the running one if there is one."""
    from pyspark.sql import SparkSession

    return SparkSession.builder.config(map=dict(conf)).getOrCreate()


def give_workers_this_python(spark: SparkSession) -> None:
    """
    Configure the Python interpreter of the workers of an existing session.

    In local mode, workers use the interpreter of this process unless ``PYSPARK_PYTHON`` or ``spark.pyspark.python`` is
    set. Otherwise Spark would use ``python3`` from the path, which may not have this package.
    """
    if is_connect(spark):
        return
    context = spark.sparkContext
    _default_worker_python(dict(context.getConf().getAll()), context.master)
    # The context read the variable when it was created.
    context.pythonExec = os.environ.get("PYSPARK_PYTHON", context.pythonExec)


def mask_settings(spark: SparkSession) -> None:
    """
    Let texts of this process hide the secret settings of a session, which may come from files that only Spark has read.
    """
    remember_secrets(secrets_in_settings(settings_of(spark)))
    if not is_connect(spark):
        # The settings of the session have those that were changed since the start of Spark, and lack some of Spark
        # itself.
        remember_secrets(secrets_in_settings(dict(spark.sparkContext.getConf().getAll())))


def jvm_pid() -> int | None:
    """Return the process id of the driver JVM, ``None`` if this process has not started one."""
    process = _gateway_process()
    return process.pid if process is not None else None


def forget_dead_jvm() -> None:
    """Clear the references of pyspark to a dead JVM, which would prevent a new session in this process."""
    process = _gateway_process()
    if not has_jvm_died():
        return
    log.warning("Driver JVM %s has died (status %s), starting a new one", process.pid, process.returncode)
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway = SparkContext._gateway
    accumulators: Any = getattr(SparkContext._active_spark_context, "_accumulatorServer", None)
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
    Return whether the driver JVM that this process started has ended.

    :param wait_seconds: Time in seconds to wait for the end of the JVM, whose connections break before its process
        ends.
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
    # The classic driver reads the workers' interpreter from the environment only. The interpreter of this process may
    # not exist on the machines of a cluster, so it is the default in local mode only.
    interpreter = conf.get("spark.pyspark.python")
    if interpreter is not None:
        os.environ["PYSPARK_PYTHON"] = interpreter
    elif master is not None and master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _gateway_process() -> Any:
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext

    return getattr(SparkContext._gateway, "proc", None)


def is_server_lost(error: BaseException) -> bool:
    """Return whether an error or one of its causes shows that the Spark Connect server was stopped or restarted."""
    return any(_is_client_error(each) and _SERVER_LOST.search(str(each)) for each in errors_before(error))


def _is_client_error(error: BaseException) -> bool:
    # A PythonException is an error of the user's function, which may contain the same texts.
    return type(error).__module__ == _CONNECT_ERRORS and type(error).__name__ != "PythonException"


Result = TypeVar("Result")

# Airflow sends SIGKILL 5 s after SIGTERM; the caller closes the attempt in the remaining time.
DEFAULT_GRACE_SECONDS = 3.0
_WAKE_SECONDS = 0.5
_CANCEL_EVERY_SECONDS = 0.2


def run_interruptibly(
    spark: SparkSession | None,
    function: Callable[..., Result],
    *args: Any,
    timeout_seconds: float | None = None,
    grace_seconds: float = DEFAULT_GRACE_SECONDS,
) -> Result:
    """
    Call a function in a separate thread, and cancel its Spark jobs if the caller is interrupted.

    An exception in the waiting thread, for instance of a signal handler, cancels all jobs of the session. It is raised
    again after the function ends or the grace period expires. A function that has not ended by then continues in a
    daemon thread, which does not prevent the process from exiting. Exceptions of the function are raised to the caller.

    :param spark: Session whose jobs are cancelled. With ``None``, as for a function that creates it, there is nothing
        to cancel, and the function is abandoned at once.
    :param timeout_seconds: Maximum duration in seconds; ``None`` for no limit.
    :param grace_seconds: Time in seconds to wait for the end of an interrupted function.
    :raises TimeoutError: if the function exceeded ``timeout_seconds``.
    """
    work: _Work[Result] = _Work(functools.partial(function, *args))
    thread = work.in_thread(spark)
    try:
        thread.start()
        _wait(work.ended, timeout_seconds)
    except BaseException:
        work.abandoned.set()
        if thread.ident is not None and spark is not None:
            _stop(spark, work.ended, grace_seconds)
        raise
    return work.outcome.result()


class _Work(Generic[Result]):
    """
    A call with its result, and events for its end and its cancellation.

    The ``ended`` event replaces ``Thread.join``: until Python 3.12, a ``join`` that is interrupted by an exception
    marks a running thread as ended.
    """

    def __init__(self, call: Callable[[], Result]) -> None:
        self.outcome: Future[Result] = Future()
        self.ended = threading.Event()
        self.abandoned = threading.Event()
        self._call = call

    def in_thread(self, spark: SparkSession | None) -> threading.Thread:
        """
        Return an unstarted thread with the caller's context variables, and its Spark properties if there is a session.
        """
        run = functools.partial(contextvars.copy_context().run, self._run)
        if spark is None:
            return threading.Thread(target=run, daemon=True, name="statecheck-start")
        return inheriting_thread(run, spark, "statecheck-stage")

    def _run(self) -> None:
        try:
            # The caller may be interrupted between the start of the thread and its wait.
            if not self.abandoned.is_set():
                self.outcome.set_result(self._call())
        except BaseException as error:
            self.outcome.set_exception(error)
        finally:
            self.ended.set()


def _wait(ended: threading.Event, timeout_seconds: float | None) -> None:
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    while not ended.is_set():
        remaining = _WAKE_SECONDS if deadline is None else min(_WAKE_SECONDS, deadline - time.monotonic())
        if remaining <= 0:
            raise TimeoutError(
                f"Expected the stage to end within {timeout_seconds} s, found it running; its Spark jobs are "
                "cancelled. Increase the timeout, or let a retry resume from the last checkpoint."
            )
        ended.wait(remaining)


def _stop(spark: SparkSession, ended: threading.Event, grace_seconds: float) -> None:
    settled = threading.Event()
    # Calls to the JVM have no timeout; in a daemon thread, a hanging call cannot exceed the grace period.
    cancel = functools.partial(_cancel_repeatedly, spark, settled)
    threading.Thread(target=cancel, daemon=True, name="statecheck-cancel").start()
    try:
        if not ended.wait(grace_seconds):
            log.warning("The stage did not end within %s s after its interruption and was abandoned.", grace_seconds)
    finally:
        settled.set()


def _cancel_repeatedly(spark: SparkSession, settled: threading.Event) -> None:
    # Repeated, because a function that catches the error of a cancelled job may start another one.
    while not settled.is_set():
        try:
            _cancel_all(spark)
        except Exception as error:
            log.warning("Could not cancel the Spark jobs: %s", error)
            return
        settled.wait(_CANCEL_EVERY_SECONDS)


def _cancel_all(spark: SparkSession) -> None:
    if is_connect(spark):
        spark.interruptAll()
    else:
        spark.sparkContext.cancelAllJobs()


_TagCalls = tuple[Callable[[str], object], Callable[[str], object], Callable[[str], object]]
"""Calls that add a job tag, remove it, and cancel the jobs that have it."""


class TaggedJobs:
    """Runs Spark jobs under a job tag."""

    def __init__(self, spark: SparkSession) -> None:
        self._tag = f"statecheck-{uuid.uuid4().hex}"
        if is_connect(spark):
            self._calls: _TagCalls = spark.addTag, spark.removeTag, spark.interruptTag
        else:
            # Tags of a classic session are visible only to the thread that added them.
            context = spark.sparkContext
            self._calls = context.addJobTag, context.removeJobTag, context.cancelJobsWithTag

    @contextmanager
    def tagged(self) -> Iterator[None]:
        """Give the tag to the jobs that this thread starts during the block."""
        add, remove, _ = self._calls
        add(self._tag)
        try:
            yield
        finally:
            remove(self._tag)

    def collect(self, frame: DataFrame) -> list[Any]:
        """Run a job and return its rows; only this job of the thread has the tag."""
        with self.tagged():
            return frame.collect()

    def submit(self, frame: DataFrame) -> Future[list[Any]]:
        """Run a job in a thread of its own, and return the future of its rows."""
        rows: Future[list[Any]] = Future()

        def run() -> None:
            try:
                rows.set_result(self.collect(frame))
            except BaseException as error:
                rows.set_exception(error)

        inheriting_thread(run, frame.sparkSession, "statecheck-job").start()
        return rows

    def each(self, frame: DataFrame) -> Iterator[Any]:
        """
        Yield the rows of one partition after another, with a job for each; the rest is not computed if it ends.
        """
        with self.tagged():
            yield from frame.toLocalIterator()

    def cancel(self) -> None:
        """Cancel the running jobs, if there are any; may be called from any thread."""
        self._calls[2](self._tag)
