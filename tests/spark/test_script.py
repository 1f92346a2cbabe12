"""Scripts without Airflow, each start in a process of its own, whose log a person reads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark.conftest import child_environment

BEGIN = """
import json, logging, os, signal, sys
from pyspark.sql import SparkSession
from airflow_provider_statecheck import Count, DataFrameSource, Stage, StageContext, run_stage

logging.basicConfig(level=logging.INFO, format="%(message)s")
spark = SparkSession.builder.config(map=json.loads(os.environ["SPARK_CONF"])).getOrCreate()
FOLDER = os.environ["FOLDER"]
HOW = {"checkpoint_dir": f"{FOLDER}/checkpoints", "metadata": f"sqlite:///{FOLDER}/rows.db"}
"""
STEPS = (
    BEGIN
    + """
with StageContext.open(spark, job="squares", **HOW) as checkpoint:
    numbers = checkpoint.snapshot("numbers", lambda: spark.range(5))
    if "KILLED" in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    checkpoint.snapshot("squares", lambda: numbers.selectExpr("id * id AS square"))
"""
)
INCREMENTS = (
    BEGIN
    + """
def part(spark, number):
    if number == 3 and "KILLED" in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    return spark.range(number)

counts = Stage("parts", max_parallelism=8).source(DataFrameSource([1, 2, 3, 4], part)).key_by("id").aggregate(n=Count())
run_stage(spark, counts, job="parts", **HOW)
"""
)
PYTHON_OF_TASKS = (
    BEGIN
    + """
def python(rows):
    import pyarrow, sys
    for _ in rows:
        yield pyarrow.RecordBatch.from_pydict({"python": [sys.executable]})

with StageContext.open(spark, job="python", **HOW) as checkpoint:
    told = checkpoint.snapshot("python", lambda: spark.range(1).coalesce(1).mapInArrow(python, "python string"))
    print("tasks ran on", told.first().python)
"""
)

WITHOUT_VARIABLE = 'import os\nos.environ.pop("PYSPARK_PYTHON", None)\n'

Start = Callable[..., tuple[int, str]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Start a script, and return its status and all that it printed."""

    def run(script: str, **variables: str) -> tuple[int, str]:
        path = tmp_path / "script.py"
        path.write_text(script)
        done = subprocess.run(
            [sys.executable, str(path)],
            env=child_environment(tmp_path, FOLDER=str(tmp_path), **variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        )
        return done.returncode, done.stdout

    return run


@pytest.mark.soak
@pytest.mark.parametrize(
    ("script", "job"),
    [
        (STEPS, "'squares', operator 'stage'"),
        pytest.param(INCREMENTS, "'parts', operator 'parts'", marks=pytest.mark.soak),
    ],
)
def test_a_script_that_was_killed_is_told_so_by_its_next_start(start: Start, script: str, job: str) -> None:
    assert start(script, KILLED="yes")[0] == -signal.SIGKILL
    status, log = start(script)
    assert status == 0, log
    assert (
        f"Attempt 2 of job {job} restores a checkpoint: started again after an attempt that never closed and was "
        f"probably "
        f"killed\n"
    ) in log
    assert "cleared" not in log
    assert "failover" not in log


@pytest.mark.soak
def test_tasks_of_a_script_run_on_its_own_interpreter(start: Start, tmp_path: Path) -> None:
    """The first ``python3`` of the path need not have this package, nor Arrow."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_text("#!/bin/sh\necho 'the wrong python' >&2\nexit 1\n")
    (tmp_path / "bin" / "python3").chmod(0o755)
    variables = {"PATH": f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}"}
    status, log = start(WITHOUT_VARIABLE + PYTHON_OF_TASKS, **variables)
    assert (status, f"tasks ran on {sys.executable}" in log) == (0, True), log
