"""
O1: overhead of checkpoints in a stage, compared with the same stage with only its final checkpoint.

Measured with the automatic interval, which skips checkpoints that cost more than they may save, and with an interval of
ten seconds. Both sides write the changes of the state after each increment, which passes the state to the next one. The
ratio is the time without checkpoints divided by the time with checkpoints.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.measure import Result, in_turn
from benchmarks.side import Side
from benchmarks.sides import ratio_result, stage_side
from benchmarks.tpch import lineitem, rows_of

KEY = "l_partkey"
GOAL = 1 / 1.05
INTERVALS = ("auto", "10 s")
NEVER = "7 d"
INCREMENT = {"bytes_per_increment": "64 MiB"}


def run(work: Path, *, quick: bool, scale: str = "10", pairs: int = 3) -> list[Result]:
    """Measure a stage of a minute or more, or a short one if ``quick``."""
    if quick:
        scale, pairs = "0.03", 1
    files = lineitem(scale)
    with stage_side(work) as ours:
        _ask(ours, lineitem("0.01"), "auto")
        return [_compare(ours, files, interval, {"scale": scale, "key": KEY}, pairs) for interval in INTERVALS]


def _compare(ours: Side, files: Path, interval: str, sizes: dict[str, Any], pairs: int) -> Result:
    checkpoints: list[int] = []

    def with_checkpoints() -> float:
        found = _ask(ours, files, interval)
        checkpoints.append(found["checkpoints"])
        return float(found["seconds"])

    readings = in_turn(with_checkpoints, lambda: float(_ask(ours, files, NEVER)["seconds"]), pairs)
    sizes = {**sizes, "rows": rows_of(files), "checkpoints": checkpoints[1:]}
    return ratio_result("O1", f"checkpoints at interval {interval} vs the last alone", readings, GOAL, sizes)


def _ask(side: Side, files: Path, interval: str) -> dict[str, Any]:
    answer = side.ask(kind="changes", files=str(files), key=KEY, interval=interval, increment=INCREMENT)
    assert answer is not None
    return answer
