"""D1: time to import all operators in a Dag file, compared with the Airflow operators that they extend."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.measure import Result, medians

LIMIT_MS = 50.0
IN_ONE_INTERPRETER = """
import time
begin = time.perf_counter()
import airflow.sdk
import airflow.providers.apache.spark.operators.spark_pyspark
import airflow.providers.apache.spark.decorators.pyspark
from airflow.sdk import BaseHook
peer = time.perf_counter()
import airflow_provider_statecheck.operators.pyspark
import airflow_provider_statecheck.decorators.checkpointed_spark
import airflow_provider_statecheck.hooks.statecheck
ours = time.perf_counter()
print((ours - begin) * 1000, (peer - begin) * 1000)
"""


def run(work: Path, *, quick: bool) -> list[Result]:
    """Measure the additional time of our imports after those of the peer, in fresh interpreters."""
    _read()
    readings = [_read() for _ in range(1 if quick else 15)]
    ours, peer = medians(readings)
    extra = statistics.median(mine - theirs for mine, theirs in readings)
    return [
        Result(
            id="D1",
            case=f"import of every operator, {extra:.0f} ms more than the operators that they extend",
            ours=ours,
            peer=peer,
            unit="ms",
            ratio=LIMIT_MS / max(extra, 0.1),
            goal=1.0,
            pairs=readings,
        )
    ]


def _read() -> list[float]:
    command = [sys.executable, "-W", "ignore", "-c", IN_ONE_INTERPRETER]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return [float(number) for number in result.stdout.splitlines()[-1].split()]
