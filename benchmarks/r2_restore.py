"""
R2: time of a retry until a function first reads its state of 1 GB, compared with reading the same bytes with pyarrow.

A measurement is the time from the start of the retry in a warm session until a function has the state of its first
batch of rows. A separate case includes the start of the process and of Spark. The peer reads all files of the
checkpoint concurrently and discards them. Local files are in the cache of the operating system, which favours the peer,
because our side reads only few of the bytes. The object store is simulated on the same machine.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measure import Result, in_turn
from benchmarks.side import Side
from benchmarks.sides import ratio_result
from tests.object_store import KEY, SECRET, running_object_store

GOAL = 1 / 1.5
WIDTH = 200
_STARTS = 3


@dataclass(frozen=True, slots=True)
class Place:
    """Location of a state."""

    name: str
    base: str
    options: dict[str, Any] = field(default_factory=dict)


def run(work: Path, *, quick: bool, keys: int = 5_000_000, pairs: int = 5) -> list[Result]:
    """Measure with 200 bytes per key, or a fiftieth of the keys on local files if ``quick``."""
    local = Place("local files", str(work / "r2-checkpoints"))
    with state_side(work, "r2") as ours, Side("benchmarks.peers.arrow_reader", work / "r2-peer.log") as theirs:
        if quick:
            return _compared(ours, theirs, local, keys // 50, 1)
        results = _compared(ours, theirs, local, keys, pairs, starts=_STARTS)
        with running_object_store() as store:
            # Bypasses the proxy of the tests, which is slow.
            options = {"key": KEY, "secret": SECRET, "endpoint_url": store.direct_url}
            results += _compared(ours, theirs, Place("S3", f"s3://{store.bucket}/r2", options), keys, pairs)
    return results


def _compared(ours: Side, theirs: Side, place: Place, keys: int, pairs: int, starts: int = 0) -> list[Result]:
    request: dict[str, Any] = {"name": place.name.replace(" ", "-"), "base": place.base, "options": place.options}
    state = built(ours, keys=keys, width=WIDTH, **request)
    reading: dict[str, Any] = {"files": state["files"], "options": place.options}
    found = theirs.ask(**reading)
    if found is None or found["rows"] != keys:
        raise RuntimeError(f"Expected {keys} rows in the files of the checkpoint, found {found}.")
    sizes = {"keys": keys, "bytes of state": state["bytes"], "files": len(state["files"])}
    case = f"{place.name}: retry to its first work vs reading its state with pyarrow"
    readings = in_turn(lambda: ours.seconds(what="retry", **request), lambda: theirs.seconds(**reading), pairs)
    results = [ratio_result("R2", case, readings, GOAL, sizes)]
    if starts:
        started = [[_from_start(ours, request), theirs.seconds(**reading)] for _ in range(starts)]
        results.append(ratio_result("R2", f"{case}, with the start of a process and its Spark", started, None, sizes))
    return results


def _from_start(ours: Side, request: dict[str, Any]) -> float:
    """Return the time until the first work of a retry, including the start of its process."""
    ours.stop()
    begin = time.time()
    answer = ours.ask(what="retry", **request)
    assert answer is not None
    return float(answer["at"]) - begin


def state_side(work: Path, name: str) -> Side:
    """Return the unstarted process of our side."""
    return Side("benchmarks.r2_side", work / f"{name}-ours.log", arguments=[str(work / f"{name}-ours")])


def built(side: Side, **request: Any) -> dict[str, Any]:
    """Build a state, and return its pointer, its files and their size in bytes."""
    state = side.ask(what="build", **request)
    assert state is not None
    return state
