"""Real signals, a real timeout and real Spark jobs, in a process of their own."""

from __future__ import annotations

import contextvars
import traceback

import pytest

from airflow_provider_statecheck.spark.driver.session import run_interruptibly

# The supervisor's SIGKILL comes 5 s after its SIGTERM.
BOUND_SECONDS = 5.0

SCENARIO = """
import json, os, signal, sys, threading, time
import logging
logging.basicConfig(level=logging.WARNING)
from pyspark.sql import functions as F
from airflow_provider_statecheck.spark.driver.session import run_interruptibly
from airflow_provider_statecheck.spark.driver.session import jvm_pid
from tests.sessions import start_session

spark = start_session(json.loads(os.environ["SPARK_CONF"]))
spark.sparkContext.setLogLevel("OFF")
spark.range(1).count()

def slow_udf():
    def spin(x):
        import time
        end = time.monotonic() + 300
        while time.monotonic() < end:
            pass
        return x
    return spark.range(0, 8, 1, 2).select(F.udf(spin, "long")("id")).collect()

def cross_join():
    a, b = spark.range(3_000_000), spark.range(3_000_000).withColumnRenamed("id", "b")
    return a.crossJoin(b).where("hash(id, b) = 7").count()

def stubborn():
    while True:
        try:
            cross_join()
        except Exception:
            pass

def when_running(action):
    def wait():
        tracker, tick = spark.sparkContext.statusTracker(), threading.Event()
        while not tracker.getActiveJobsIds():
            tick.wait(0.02)
        action()
    threading.Thread(target=wait, daemon=True).start()

began = None

class Terminated(Exception):
    pass

def on_term(number, frame):
    global began
    began = time.monotonic()
    raise Terminated("told to end")

def on_alarm(number, frame):
    global began
    began = time.monotonic()
    from airflow.sdk.exceptions import AirflowTaskTimeout
    raise AirflowTaskTimeout("took too long")

signal.signal(signal.SIGTERM, on_term)

def report(error):
    seconds = time.monotonic() - began
    running = list(spark.sparkContext.statusTracker().getActiveJobsIds())
    usable = None if running else spark.range(11).count()
    found = {"error": type(error).__name__, "seconds": seconds, "running": running, "usable": usable}
    print(json.dumps(found), flush=True)

try:
    RUN
except BaseException as error:
    report(error)
"""

BY_SIGTERM = "when_running(lambda: os.kill(os.getpid(), signal.SIGTERM)); run_interruptibly(spark, {work})"
# What Airflow does for execution_timeout, except that the handler also reads the clock.
BY_ALARM = (
    "signal.signal(signal.SIGALRM, on_alarm); "
    "when_running(lambda: os.kill(os.getpid(), signal.SIGALRM)); run_interruptibly(spark, {work})"
)
BY_AIRFLOW = (
    "from airflow.sdk.execution_time.timeout import timeout\n"
    "    began = time.monotonic() + 3\n"
    "    with timeout(3): run_interruptibly(spark, {work})"
)


@pytest.mark.parametrize(
    ("how", "work", "error"),
    [
        (BY_SIGTERM, "slow_udf", "Terminated"),
        pytest.param(BY_SIGTERM, "cross_join", "Terminated", marks=pytest.mark.soak),
        pytest.param(BY_ALARM, "cross_join", "AirflowTaskTimeout", marks=pytest.mark.soak),
        pytest.param(BY_AIRFLOW, "slow_udf", "AirflowTaskTimeout", marks=pytest.mark.soak),
    ],
    ids=["sigterm-udf", "sigterm-join", "alarm-join", "execution-timeout-udf"],
)
def test_an_interruption_ends_the_stage_in_time_and_leaves_the_session_usable(run_child, how, work, error):
    found = run_child(SCENARIO.replace("RUN", how.format(work=work)))
    assert found["error"] == error
    assert found["running"] == []
    assert found["seconds"] < BOUND_SECONDS
    assert found["usable"] == 11


@pytest.mark.soak
def test_a_function_that_swallows_every_error_cannot_hold_up_the_caller(run_child):
    found = run_child(
        SCENARIO.replace("RUN", BY_SIGTERM.format(work="stubborn")).replace("None if running", "None if True")
    )
    assert found["error"] == "Terminated"
    assert found["seconds"] < BOUND_SECONDS


def test_the_result_is_returned(spark):
    assert run_interruptibly(spark, lambda: spark.range(4).count()) == 4


def test_an_error_keeps_the_place_where_it_was_raised(spark):
    def broken_step() -> None:
        raise LookupError("no such table")

    with pytest.raises(LookupError, match="no such table") as raised:
        run_interruptibly(spark, broken_step)
    assert "broken_step" in [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]


def test_leaving_by_exit_reaches_the_caller(spark):
    def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit, match="3"):
        run_interruptibly(spark, leave)


def test_context_variables_and_spark_properties_are_those_of_the_caller(spark):
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    token = variable.set("given")
    spark.sparkContext.setLocalProperty("statecheck.test", "here")
    try:
        found = run_interruptibly(
            spark, lambda: (variable.get(), spark.sparkContext.getLocalProperty("statecheck.test"))
        )
    finally:
        variable.reset(token)
        spark.sparkContext.setLocalProperty("statecheck.test", None)
    assert found == ("given", "here")


def test_arguments_are_passed_on(spark):
    assert run_interruptibly(spark, lambda a, b: a + b, 1, 2) == 3


def test_a_limit_of_its_own_ends_the_function(spark):
    def forever() -> None:
        spark.range(10**15).selectExpr("sum(hash(id))").collect()

    with pytest.raises(TimeoutError, match="found it running"):
        run_interruptibly(spark, forever, timeout_seconds=1.0)
    assert spark.range(3).count() == 3


def test_a_timeout_error_of_the_function_is_its_own(spark):
    def fail() -> None:
        raise TimeoutError("a service was slow")

    with pytest.raises(TimeoutError, match="a service was slow"):
        run_interruptibly(spark, fail, timeout_seconds=60.0)


@pytest.mark.soak
def test_a_jvm_that_hangs_cannot_hold_up_the_caller(run_child):
    script = SCENARIO.replace("RUN", BY_SIGTERM.format(work="cross_join")).replace("None if running", "None if True")
    stopped = script.replace("raise Terminated", "os.kill(jvm_pid(), signal.SIGSTOP); raise Terminated")
    asked = stopped.replace("running = list(spark.sparkContext.statusTracker().getActiveJobsIds())", "running = []")
    found = run_child(asked + "os.kill(jvm_pid(), signal.SIGKILL)\nos._exit(0)\n")
    assert found["error"] == "Terminated"
    assert found["seconds"] < BOUND_SECONDS
