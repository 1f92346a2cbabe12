"""
R1: a job of five steps whose driver gets kill -9 at 90 % of its work, and its retry by Airflow.

Our operator keeps four of the steps as snapshots; the peer is the same work by Spark's own operator, in one Spark job
without anything between its input and its output, whose retry begins with nothing. A reading is the time from the begin
of the task's first try to the end of its work; how long a run takes undisturbed is measured right before it.
"""

from __future__ import annotations

import shutil
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset as ds

from benchmarks.measure import Result
from benchmarks.r1_airflow import PrivateAirflow, Run
from benchmarks.r1_marks import Moment
from benchmarks.r1_steps import KEYS
from benchmarks.sides import ratio_result
from benchmarks.tpch import lineitem, rows_of

OURS, PEER = "r1_ours", "r1_peer"
KILLED_AT = 0.9
GOAL = 1 / 1.15
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Reading:
    """Both runs of one side."""

    undisturbed: Run
    killed: Run

    @property
    def factor(self) -> float:
        """Return how many times the undisturbed run the killed one took."""
        return self.killed.seconds / self.undisturbed.seconds


def run(work: Path, *, quick: bool, scale: str = "3", pairs: int = 3) -> list[Result]:
    """Measure on TPC-H lineitem, on a very small one where it is to be quick."""
    if quick:
        scale, pairs = "0.01", 1
    files = lineitem(scale)
    airflow = PrivateAirflow(work / "r1")
    if not quick:
        for dag in (OURS, PEER):
            airflow.run(dag, lineitem("0.01"))
    readings = [_pair(airflow, files, number) for number in range(pairs)]
    ours, theirs = [mine for mine, _ in readings], [other for _, other in readings]
    return _results(ours, theirs, {"scale": scale, "rows": rows_of(files), "steps": len(KEYS), "killed at": KILLED_AT})


def _pair(airflow: PrivateAirflow, files: Path, number: int) -> tuple[Reading, Reading]:
    order = (OURS, PEER) if number % 2 == 0 else (PEER, OURS)
    sums: list[list[Any]] = []
    found = {dag: _reading(airflow, dag, files, sums) for dag in order}
    if any(each != sums[0] for each in sums):
        raise RuntimeError(f"Expected the same output of all runs, found the sums {sums}.")
    return found[OURS], found[PEER]


def _reading(airflow: PrivateAirflow, dag: str, files: Path, sums: list[list[Any]]) -> Reading:
    undisturbed = _run(airflow, dag, files, sums)
    for _ in range(_TRIES):
        killed = _run(airflow, dag, files, sums, Moment.at(KILLED_AT, undisturbed.marks))
        if killed.is_retried:
            return Reading(undisturbed, killed)
        # It was so much faster that it was over by then.
        undisturbed = killed
    raise RuntimeError(f"Expected a run of {dag} to kill, found {_TRIES} that were over too soon.")


def _run(airflow: PrivateAirflow, dag: str, files: Path, sums: list[list[Any]], kill_at: Moment | None = None) -> Run:
    done = airflow.run(dag, files, kill_at)
    sums.append(_sums_of(done.output))
    shutil.rmtree(done.output)
    return done


def _sums_of(output: Path) -> list[Any]:
    """Return the number of rows and the sum of each column that a step added."""
    names = [f"{what}_by_{key}" for key in KEYS for what in ("previous", "number")]
    output_of = ds.dataset(output, format="parquet")
    return [output_of.count_rows(), *(pc.sum(output_of.to_table([name])[name]).as_py() for name in names)]


def _results(ours: list[Reading], theirs: list[Reading], sizes: dict[str, Any]) -> list[Result]:
    sizes |= {"seconds of our last try": [each.killed.last_try for each in ours]}
    factor = statistics.median(each.factor for each in theirs)
    retried = [[each.killed.seconds, each.undisturbed.seconds] for each in ours]
    against = [[mine.killed.seconds, other.killed.seconds] for mine, other in zip(ours, theirs, strict=True)]
    plain = [[mine.undisturbed.seconds, other.undisturbed.seconds] for mine, other in zip(ours, theirs, strict=True)]
    killed = f"killed at {KILLED_AT:.0%} and retried"
    return [
        ratio_result("R1", f"{killed} vs undisturbed", retried, GOAL, sizes),
        ratio_result(
            "R1", f"{killed} vs SparkSubmitOperator, which takes {factor:.2f} times its own", against, None, sizes
        ),
        ratio_result("R1", "undisturbed vs SparkSubmitOperator", plain, None, sizes),
    ]
