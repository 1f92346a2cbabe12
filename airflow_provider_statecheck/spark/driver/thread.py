"""
Running a stage so that a timeout or a signal ends it within seconds.

Python runs signal handlers in the main thread only, and a main thread that waits inside py4j does not get to them until
Spark's job is over. So the stage runs in a thread of its own, and the main thread waits where it can be woken.
"""

from __future__ import annotations

import contextvars
import functools
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from airflow_provider_statecheck.spark.driver.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

Result = TypeVar("Result")

# Airflow follows its SIGTERM by a SIGKILL 5 s later; the caller needs the rest of that time for its last message.
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
    Call a function that uses Spark in a thread of its own, and cancel its jobs when the caller is interrupted.

    Whatever is raised in the waiting thread, by a signal handler for instance, cancels all jobs of the session and is
    raised again once the function has ended, or after the grace period. A function that has not ended by then is left
    in a daemon thread, which does not keep the process alive. What the function raises is raised to the caller.

    :param spark: The session that the function uses.
    :param function: What to call.
    :param args: Its arguments.
    :param timeout_seconds: How long the function may take; ``None`` is as long as it likes.
    :param grace_seconds: How long an interrupted function may take to end.
    :raises TimeoutError: The function took longer than it may.
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
    One call, its result or error, whether it is over, and whether anybody still wants it.

    That it is over is an event of its own, because the thread cannot be asked: a ``join`` that a signal handler leaves
    by an exception marks, up to Python 3.12, the running thread as ended.
    """

    def __init__(self, call: Callable[[], Result]) -> None:
        self.outcome: Future[Result] = Future()
        self.ended = threading.Event()
        self.abandoned = threading.Event()
        self._call = call

    def in_thread(self, spark: SparkSession) -> threading.Thread:
        """Return a thread, not yet started, that sees the caller's context variables and Spark properties."""
        from pyspark import InheritableThread

        run = functools.partial(contextvars.copy_context().run, self._run)
        return InheritableThread(run, session=spark, daemon=True, name="statecheck-stage")

    def _run(self) -> None:
        try:
            # An interruption between the thread's start and the caller's wait must not leave work behind.
            if not self.abandoned.is_set():
                self.outcome.set_result(self._call())
        except BaseException as error:
            self.outcome.set_exception(error)
        finally:
            self.ended.set()


def _wait(ended: threading.Event, timeout_seconds: float | None) -> None:
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    while not ended.is_set():
        left = _WAKE_SECONDS if deadline is None else min(_WAKE_SECONDS, deadline - time.monotonic())
        if left <= 0:
            raise TimeoutError(
                f"The stage may take {timeout_seconds} s and has not ended by then; its Spark jobs are cancelled. "
                "Raise the limit, or let a retry go on from the last checkpoint."
            )
        ended.wait(left)


def _stop(spark: SparkSession, ended: threading.Event, grace_seconds: float) -> None:
    settled = threading.Event()
    # Calls to the JVM have no timeout. Made by another daemon thread, one that hangs cannot outlast the grace period.
    cancel = functools.partial(_cancel_repeatedly, spark, settled)
    threading.Thread(target=cancel, daemon=True, name="statecheck-cancel").start()
    try:
        if not ended.wait(grace_seconds):
            log.warning("The stage did not end within %s s of its interruption; it is left behind.", grace_seconds)
    finally:
        settled.set()


def _cancel_repeatedly(spark: SparkSession, settled: threading.Event) -> None:
    # Once is not enough: code that catches the error of its cancelled job may go on to start the next one.
    while not settled.is_set():
        try:
            _cancel_all(spark)
        except Exception as error:
            log.warning("Spark's jobs could not be cancelled: %s", error)
            return
        settled.wait(_CANCEL_EVERY_SECONDS)


def _cancel_all(spark: SparkSession) -> None:
    if is_connect(spark):
        spark.interruptAll()
    else:
        spark.sparkContext.cancelAllJobs()
