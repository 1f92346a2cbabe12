"""
W1: reading the whole state of a function as a Spark DataFrame, compared with reading the same rows from Parquet.

Both sides have a warm session and discard the rows. Spark writes the Parquet files from the DataFrame of the state, and
their rows are compared once with the input.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import Result, in_turn
from benchmarks.r2_restore import built, state_side
from benchmarks.side import Side
from benchmarks.sides import ratio_result

GOAL = 0.8
STATES = ((5_000_000, 200), (10_000_000, 8))
"""Number of keys, and size of the text of a key in bytes."""


def run(work: Path, *, quick: bool, pairs: int = 5) -> list[Result]:
    """Measure a state of large and one of small values, or a hundredth of the first one if ``quick``."""
    states: tuple[tuple[int, int], ...] = STATES
    if quick:
        states, pairs = ((STATES[0][0] // 100, STATES[0][1]),), 1
    with state_side(work, "w1") as ours, Side("benchmarks.peers.spark_reader", work / "w1-peer.log") as theirs:
        return [_compared(ours, theirs, work, keys, width, pairs) for keys, width in states]


def _compared(ours: Side, theirs: Side, work: Path, keys: int, width: int, pairs: int) -> Result:
    name = f"w1-{width}"
    checkpoints, parquet = str(work / f"{name}-checkpoints"), work / f"{name}-parquet"
    state = built(ours, name=name, keys=keys, width=width, base=checkpoints, options={})
    request: dict[str, Any] = {"name": name, "pointer": state["pointer"]}
    copied = ours.ask(what="copy", target=str(parquet), **request)
    assert copied is not None
    _require_same(work / "w1-ours" / name / "input" / "1-all.parquet", parquet)
    readings = in_turn(lambda: ours.seconds(what="read", **request), lambda: theirs.seconds(files=str(parquet)), pairs)
    sizes = {"keys": keys, "bytes of state": state["bytes"], "bytes of Parquet": copied["bytes"]}
    case = f"{keys:,} keys of {width} bytes as a DataFrame vs from Parquet"
    return ratio_result("W1", case, readings, GOAL, sizes)


def _require_same(given: Path, copy: Path) -> None:
    mine, other = (_sorted(pq.read_table(folder)) for folder in (given, copy))
    if not mine.equals(other):
        raise RuntimeError(f"Expected the rows of {given} in the state, found {other.num_rows} others in {copy}.")


def _sorted(table: Any) -> Any:
    renamed = table.rename_columns(["id", "note"]).sort_by("id")
    # Normalize the string type and nullability, which differ between Spark and the input.
    return renamed.cast(pa.schema([("id", pa.int64()), ("note", pa.string())])).combine_chunks()
