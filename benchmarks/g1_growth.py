"""
G1: growth of the time and memory of K1 with the data: TPC-H scales 1, 3 and 10 in the same number of increments.

There is no peer. The time for the largest table is compared with that for the smallest, multiplied by the ratio of the
rows to the power of ``EXPONENT``. The memory is the maximum of the Python processes of Spark's tasks.
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

from benchmarks.measure import Result
from benchmarks.side import Side
from benchmarks.sides import stage_side
from benchmarks.tpch import lineitem, rows_of

KEY = "l_partkey"
EXPONENT = 1.05
FLAT = 1.25
"""Allowed growth of the memory, for rounding and the behaviour of the allocator."""


def run(work: Path, *, quick: bool, scales: tuple[str, ...] = ("1", "3", "10"), runs: int = 3) -> list[Result]:
    """Measure all scales, or two small ones if ``quick``."""
    if quick:
        scales, runs = ("0.01", "0.03"), 1
    with stage_side(work) as ours:
        _ask(ours, lineitem(scales[0]))
        readings = {scale: _read(ours, lineitem(scale), runs) for scale in scales}
    first, last = readings[scales[0]], readings[scales[-1]]
    sizes: dict[str, Any] = {"key": KEY, "scales": list(scales)}
    sizes |= {f"rows at {scale}": found["rows"] for scale, found in readings.items()}
    sizes |= {f"seconds at {scale}": found["seconds"] for scale, found in readings.items()}
    grown = last["rows"] / first["rows"]
    sizes["exponent"] = math.log(last["seconds"] / first["seconds"]) / math.log(grown)
    span = f"TPC-H {scales[0]} to {scales[-1]}"
    allowed = first["seconds"] * grown**EXPONENT
    return [
        _result(f"{span}, time vs rows to the {EXPONENT}", last["seconds"], allowed, "s", sizes),
        _result(f"{span}, memory of a Python process", last["peak_mb"], first["peak_mb"] * FLAT, "MB", sizes),
    ]


def _read(side: Side, files: Path, runs: int) -> dict[str, float]:
    found = [_ask(side, files) for _ in range(runs)]
    return {
        "rows": rows_of(files),
        "seconds": statistics.median(each["seconds"] for each in found),
        "peak_mb": max(each["peak_mb"] for each in found),
    }


def _ask(side: Side, files: Path) -> dict[str, Any]:
    answer = side.ask(kind="aggregate", files=str(files), key=KEY, watch=True)
    assert answer is not None
    return answer


def _result(case: str, found: float, allowed: float, unit: str, sizes: dict[str, Any]) -> Result:
    return Result(
        id="G1",
        case=case,
        ours=found,
        peer=allowed,
        unit=unit,
        ratio=allowed / found,
        goal=1.0,
        pairs=[[found, allowed]],
        sizes=sizes,
    )
