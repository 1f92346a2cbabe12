"""
Interruptible execution of a stage in a thread, and cancellation of its Spark jobs by a tag.

Python runs signal handlers in the main thread only. A main thread that waits inside py4j runs them only after the Spark job
ends. The stage therefore runs in a separate thread, and the main thread waits interruptibly.
"""

from __future__ import annotations

import contextvars
import functools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from airflow_provider_statecheck.spark.driver.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


log = logging.getLogger(__name__)

Result = TypeVar("Result")

# Airflow sends SIGKILL 5 s after SIGTERM; the caller closes the attempt in the remaining time.
DEFAULT_GRACE_SECONDS = 3.0
_WAKE_SECONDS = 0.5
_CANCEL_EVERY_SECONDS = 0.2


def run_interruptibly(
    spark: SparkSession,
    function: Callable[..., Result],
    *args: Any,
    timeout_seconds: float | None = None,
    grace_seconds: float = DEFAULT_GRACE_SECONDS,
) -> Result:
    """
    Call a function in a separate thread, and cancel its Spark jobs if the caller is interrupted.

    An exception in the waiting thread, for instance of a signal handler, cancels all jobs of the session. It is raised
    again after the function ends or the grace period expires. A function that has not ended by then continues in a daemon
    thread, which does not prevent the process from exiting. Exceptions of the function are raised to the caller.

    :param timeout_seconds: Maximum duration in seconds; ``None`` for no limit.
    :param grace_seconds: Time in seconds to wait for the end of an interrupted function.
    :raises TimeoutError: The function exceeded ``timeout_seconds``.
    """
    work: _Work[Result] = _Work(functools.partial(function, *args))
    thread = work.in_thread(spark)
    try:
        thread.start()
        _wait(work.ended, timeout_seconds)
    except BaseException:
        work.abandoned.set()
        if thread.ident is not None:
            _stop(spark, work.ended, grace_seconds)
        raise
    return work.outcome.result()


class _Work(Generic[Result]):
    """
    A call with its result, and events for its end and its cancellation.

    The ``ended`` event replaces ``Thread.join``: until Python 3.12, a ``join`` that is interrupted by an exception marks a
    running thread as ended.
    """

    def __init__(self, call: Callable[[], Result]) -> None:
        self.outcome: Future[Result] = Future()
        self.ended = threading.Event()
        self.abandoned = threading.Event()
        self._call = call

    def in_thread(self, spark: SparkSession) -> threading.Thread:
        """Return an unstarted thread with the caller's context variables and Spark properties."""
        from pyspark import InheritableThread

        run = functools.partial(contextvars.copy_context().run, self._run)
        return InheritableThread(run, session=spark, daemon=True, name="statecheck-stage")

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
                f"Expected the stage to end within {timeout_seconds} s, found it running; its Spark jobs are cancelled. "
                "Increase the timeout, or let a retry resume from the last checkpoint."
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

    def cancel(self) -> None:
        """Cancel the running jobs, if there are any; may be called from any thread."""
        self._calls[2](self._tag)
