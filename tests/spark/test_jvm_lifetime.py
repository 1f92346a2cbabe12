from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_statecheck.spark.driver.session import jvm_pid
from tests.spark.conftest import child_environment

START = """
import json, os, signal, sys
from airflow_provider_statecheck.spark.driver.session import *
from airflow_provider_statecheck.spark.driver import session as s
from tests.sessions import start_session
spark = start_session(json.loads(os.environ["SPARK_CONF"]) | json.loads(os.environ.get("MORE_CONF", "{}")))
spark.sparkContext.setLogLevel("OFF")
"""

# Counts after it was signalled, which it can do only if its JVM is still there.
SIGNALLED = (
    START
    + """
import threading
told = threading.Event()
signal.signal(signal.SIGTERM, lambda number, frame: told.set())
print(json.dumps(s.jvm_pid()), flush=True)
told.wait(60)
print(json.dumps(spark.range(7).count()), flush=True)
sys.stdin.read()
"""
)

KILLED = (
    START
    + """
import select
assert not s.has_jvm_died()
first = s.jvm_pid()
held = spark.range(10)
ended = select.poll()
ended.register(os.pidfd_open(first), select.POLLIN)
os.kill(first, signal.SIGKILL)
assert ended.poll(20000)
seen = [s.has_jvm_died()]
for call in (held.count, lambda: spark.sql("select 1")):
    try:
        call()
    except Exception:
        seen.append(s.has_jvm_died())
again = start_session(json.loads(os.environ["SPARK_CONF"]))
print(json.dumps({"seen": seen, "count": again.range(5).count(), "is_new": s.jvm_pid() not in (None, first)}))
"""
)

KILLED_WHILE_WORKING = (
    START
    + """
import threading
def kill():
    tracker, tick = spark.sparkContext.statusTracker(), threading.Event()
    while not tracker.getActiveJobsIds():
        tick.wait(0.02)
    os.kill(s.jvm_pid(), signal.SIGKILL)
threading.Thread(target=kill, daemon=True).start()
try:
    spark.range(10**15).selectExpr("sum(hash(id))").collect()
except Exception:
    print(json.dumps(s.has_jvm_died(wait_seconds=10)))
"""
)


def wait_for_end(pid: int, seconds: float) -> bool:
    """Wait until a process that need not be our child has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    finally:
        os.close(descriptor)


def start_child(tmp_path: Path) -> subprocess.Popen[str]:
    script = tmp_path / "signalled.py"
    script.write_text(SIGNALLED)
    return subprocess.Popen(
        [sys.executable, str(script)],
        env=child_environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def test_jvm_runs_in_a_process_session_of_its_own(spark):
    pid = jvm_pid()
    assert pid is not None
    assert os.getsid(pid) == pid
    assert os.getsid(pid) != os.getsid(0)


@pytest.mark.soak
def test_jvm_survives_a_signal_to_the_group_and_ends_with_python(tmp_path):
    with start_child(tmp_path) as child:
        assert child.stdout is not None
        jvm = json.loads(child.stdout.readline())
        os.killpg(child.pid, signal.SIGTERM)
        assert json.loads(child.stdout.readline()) == 7
        assert not wait_for_end(jvm, 0)
        child.kill()
        assert wait_for_end(jvm, 30)


@pytest.mark.soak
def test_new_session_starts_in_the_same_process_after_the_jvm_was_killed(run_child):
    found = run_child(KILLED)
    assert found == {"seen": [True, True, True], "count": 5, "is_new": True}


@pytest.mark.soak
def test_a_jvm_that_dies_while_a_job_runs_is_recognised(run_child):
    assert run_child(KILLED_WHILE_WORKING)


def test_only_what_a_jvm_needs_at_its_start_is_on_its_command_line(run_child):
    script = START + (
        'line = open(f"/proc/{s.jvm_pid()}/cmdline").read()\n'
        'hadoop = spark._jsparkSession.sessionState().newHadoopConf().get("fs.s3a.secret.key")\n'
        'print(json.dumps(["hush-hush" in line, "-Xmx777m" in line, hadoop]))\n'
    )
    more = {"spark.hadoop.fs.s3a.secret.key": "hush-hush", "spark.driver.memory": "777m"}
    assert run_child(script, MORE_CONF=json.dumps(more)) == [False, True, "hush-hush"]


def test_workers_run_this_interpreter(spark):
    def executable(_):
        import sys

        return sys.executable

    from pyspark.sql import functions as F

    row = spark.range(1).select(F.udf(executable, "string")("id")).first()
    assert row[0] == sys.executable
