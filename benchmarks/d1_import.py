"""D1: what a Dag file pays for importing every operator, beyond the Airflow operators that they extend."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.measure import Result, in_turn, medians

LIMIT_MS = 50.0
PEER = """
import airflow.sdk
import airflow.providers.apache.spark.operators.spark_pyspark
import airflow.providers.apache.spark.decorators.pyspark
"""
OURS = (
    PEER
    + """
import airflow_provider_statecheck.operators.pyspark
import airflow_provider_statecheck.decorators.checkpointed_spark
import airflow_provider_statecheck.hooks.statecheck
"""
)
TIMED = "import time\nbegin = time.perf_counter()\n{}\nprint((time.perf_counter() - begin) * 1000)"


def run(work: Path, *, quick: bool) -> list[Result]:
    """Measure in fresh interpreters."""
    readings = in_turn(lambda: _import(OURS), lambda: _import(PEER), 3 if quick else 15)
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


def _import(statements: str) -> float:
    code = TIMED.format(statements)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])
