"""
Running a stage so that a timeout or a signal ends it within seconds.

Python runs signal handlers in the main thread only, and a main thread that waits inside py4j does not get to them until
Spark's job is over. So the stage runs in a thread of its own, and the main thread waits where it can be woken.
"""

from __future__ import annotations

import contextvars
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from threading import Thread

    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_WAKE_SECONDS = 0.2


class _Outcome(Generic[Result]):
    """What became of the stage's function."""

    def __init__(self, function: Callable[[], Result]) -> None:
        self._function = function
        self._context = contextvars.copy_context()
        self.value: Result | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Call the function; whatever it raises is kept for the main thread."""
        try:
            self.value = self._context.run(self._function)
        except BaseException as error:
            self.error = error


def run_interruptibly(
    spark: SparkSession, function: Callable[[], Result], *, grace_seconds: float = 3.0
) -> Result | None:
    """
    Run a function in a thread that inherits Spark's local properties, and wait for it.

    :param spark: Its jobs are cancelled when the wait is interrupted.
    :param function: The stage.
    :param grace_seconds: How long the stage may take to notice that its jobs were cancelled.
    :return: What the function returned.
    :raises BaseException: what the function raised, or what interrupted the main thread.
    """
    from pyspark import InheritableThread

    outcome = _Outcome(function)
    thread = InheritableThread(target=outcome.run, name="statecheck-stage", daemon=True, session=spark)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_WAKE_SECONDS)
    except BaseException:
        _cancel(spark, thread, grace_seconds)
        raise
    if outcome.error is not None:
        raise outcome.error
    return outcome.value


def _cancel(spark: SparkSession, thread: Thread, grace_seconds: float) -> None:
    deadline = time.monotonic() + grace_seconds
    while thread.is_alive() and time.monotonic() < deadline:
        # Again and again: between two jobs of a stage there is nothing to cancel.
        _cancel_jobs(spark)
        thread.join(_WAKE_SECONDS)
    if thread.is_alive():
        log.warning(
            "The stage did not end within %s s after its jobs were cancelled; it is left behind.",
            grace_seconds,
        )


def _cancel_jobs(spark: SparkSession) -> None:
    try:
        spark.sparkContext.cancelAllJobs()
    except Exception as error:
        log.warning("Spark's jobs could not be cancelled: %s", error)
