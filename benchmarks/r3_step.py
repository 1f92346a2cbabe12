"""
R3: one row-wise step of two minutes whose driver is killed after 90 % of the rows.

Our operator computes the step part by part, and its retry by Airflow computes the missing parts. The peers are the same
step with Spark's operator, whose retry starts from the beginning, and Ray Data and Daft with their checkpoints, which
are started again at once without Airflow. A measurement is the time from the start of the first try to the end of the
work. The undisturbed run is measured immediately before it.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.measure import Result
from benchmarks.peers.environments import python_with
from benchmarks.r1_airflow import KillMoment, PrivateAirflow, Run
from benchmarks.r3_calls import Processed, repeated_rows
from benchmarks.r3_driver import RestartedDriver
from benchmarks.r3_input import FILES, flights
from benchmarks.r3_outputs import Outputs
from benchmarks.sides import ratio_result

ROWS, QUICK_ROWS, WARM_UP_ROWS = 3_000_000, 250_000, 10_000
KILLED_AT = 0.9
GOAL, GOAL_UNDISTURBED, AHEAD = 1 / 1.15, 1 / 1.05, 1.0
RAY, DAFT = "2.60.0", "0.7.26"
OURS, PLAIN = "ours", "SparkSubmitOperator"
PEERS = (f"Ray Data {RAY}", f"Daft {DAFT}")
_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Side:
    """One side, with its measurements."""

    name: str
    run: Callable[[Path, KillMoment | None], Run]
    resumes: bool
    undisturbed: list[Run] = field(default_factory=list)
    killed: list[Run] = field(default_factory=list)
    repeated: list[int] = field(default_factory=list)
    """Rows that both tries of a killed run processed."""

    @property
    def factors(self) -> list[float]:
        """The durations of the killed runs relative to the undisturbed ones."""
        return [killed.seconds / whole.seconds for killed, whole in zip(self.killed, self.undisturbed, strict=True)]

    def figures(self, rows: int) -> dict[str, Any]:
        """Return all measurements in seconds, and the share of the rows that both tries processed."""
        return {
            "undisturbed": [each.seconds for each in self.undisturbed],
            "killed": [each.seconds for each in self.killed],
            "last try": [each.last_try for each in self.killed],
            "processed twice": [count / rows for count in self.repeated],
        }


def run(work: Path, *, quick: bool, rows: int = ROWS, pairs: int = 1) -> list[Result]:
    """Measure on flights, or on a twelfth of them if ``quick``."""
    rows = QUICK_ROWS if quick else rows
    files, outputs = flights(rows), Outputs(rows)
    sides = _sides(work / "r3")
    if not quick:
        for side in sides:
            side.run(flights(WARM_UP_ROWS), None)
    for number in range(pairs):
        for side in sides if number % 2 == 0 else reversed(sides):
            _measure(side, files, rows, outputs)
    sizes = {"rows": rows, "files": FILES, "killed at": KILLED_AT, "sum of the scores": outputs.checksum}
    return _results({side.name: side for side in sides}, sizes | {side.name: side.figures(rows) for side in sides})


def _sides(work: Path) -> list[Side]:
    airflow = PrivateAirflow(work / "airflow", _HERE / "r3_dags")
    # The speed of the function depends on the version of numpy.
    numpy, pandas = (f"{name}=={metadata.version(name)}" for name in ("numpy", "pandas"))
    ray = python_with(f"ray-{RAY}", f"ray[data]=={RAY}", numpy, pandas)
    daft = python_with(f"daft-{DAFT}", f"daft[ray,iceberg]=={DAFT}", "pyiceberg[sql-sqlite]", numpy, pandas)
    return [
        Side(OURS, partial(airflow.run, "r3_ours"), resumes=True),
        Side(PLAIN, partial(airflow.run, "r3_plain"), resumes=False),
        Side(PEERS[0], RestartedDriver("benchmarks.peers.ray_side", ray, work / "ray").run, resumes=True),
        Side(PEERS[1], RestartedDriver("benchmarks.peers.daft_side", daft, work / "daft").run, resumes=True),
    ]


def _measure(side: Side, files: Path, rows: int, outputs: Outputs) -> None:
    for kill_at, runs in ((None, side.undisturbed), (Processed(int(rows * KILLED_AT)), side.killed)):
        found = side.run(files, kill_at)
        if found.is_retried != (kill_at is not None):
            raise RuntimeError(
                f"Expected a second try of {side.name} exactly after a kill, found is_retried={found.is_retried}."
            )
        repeated = repeated_rows(found.marks, rows, resumes=side.resumes)
        outputs.add(found.output)
        shutil.rmtree(found.output.parent)
        runs.append(found)
        if kill_at is not None:
            side.repeated.append(repeated)


def _results(sides: dict[str, Side], sizes: dict[str, Any]) -> list[Result]:
    ours, plain = sides[OURS], sides[PLAIN]
    killed = f"killed at {KILLED_AT:.0%} and retried"
    result = partial(ratio_result, "R3", sizes=sizes)
    return [
        result(f"{killed} vs undisturbed", _pairs(ours.killed, ours.undisturbed), GOAL),
        result(
            f"undisturbed vs a plain write by {PLAIN}", _pairs(ours.undisturbed, plain.undisturbed), GOAL_UNDISTURBED
        ),
        result(f"{killed} vs {_described(plain)}", _pairs(ours.killed, plain.killed), AHEAD),
        *(each for name in PEERS for each in _against(sides[name], ours, killed, sizes)),
    ]


def _against(peer: Side, ours: Side, killed: str, sizes: dict[str, Any]) -> list[Result]:
    """
    Return the comparisons with a peer that runs without Airflow and Spark, whose starts are a part of our time only.
    """
    factors = [[mine, other] for mine, other in zip(ours.factors, peer.factors, strict=True)]
    seconds = _pairs(ours.killed, peer.killed)
    return [
        ratio_result("R3", f"{killed}, in undisturbed times vs {peer.name}", factors, AHEAD, sizes, "x"),
        ratio_result("R3", f"{killed} vs {_described(peer)}, without Airflow", seconds, None, sizes),
    ]


def _described(side: Side) -> str:
    return f"{side.name}, which takes {statistics.median(side.factors):.2f} times its own"


def _pairs(mine: list[Run], other: list[Run]) -> list[list[float]]:
    return [[one.seconds, another.seconds] for one, another in zip(mine, other, strict=True)]
