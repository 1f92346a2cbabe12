"""
R1: a job of five steps whose driver is killed at 90 % of its work and retried by Airflow.

Our operator takes snapshots of four steps. The peer is the same work with Spark's operator as one Spark job without
intermediate results, whose retry starts from the beginning. A measurement is the time from the start of the first try
to the end of the work. The undisturbed run is measured immediately before it.
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
    """Undisturbed and killed run of one side."""

    undisturbed: Run
    killed: Run

    @property
    def factor(self) -> float:
        """The duration of the killed run relative to the undisturbed run."""
        return self.killed.seconds / self.undisturbed.seconds


def run(work: Path, *, quick: bool, scale: str = "3", pairs: int = 3) -> list[Result]:
    """Measure on TPC-H lineitem, or on a very small one if ``quick``."""
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
        # The run ended before the kill, so it is the new undisturbed run.
        undisturbed = killed
    raise RuntimeError(f"Expected a run of {dag} that can be killed, found {_TRIES} that ended before the kill.")


def _run(airflow: PrivateAirflow, dag: str, files: Path, sums: list[list[Any]], kill_at: Moment | None = None) -> Run:
    result = airflow.run(dag, files, kill_at)
    sums.append(_sums_of(result.output))
    shutil.rmtree(result.output)
    return result


def _sums_of(output: Path) -> list[Any]:
    """Return the number of rows and the sum of each column that a step added."""
    names = [f"{column}_by_{key}" for key in KEYS for column in ("previous", "number")]
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
