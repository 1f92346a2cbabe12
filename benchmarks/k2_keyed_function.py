"""
K2: a Python function by key with a value in state, on two files of TPC-H lineitem, compared with Spark and PyFlink.

A peer that exceeds the time limit is stopped, and its measurement is the limit; the ratio is then a lower bound.
PyFlink reads CSV, and our side reads the same CSV in this case. The state cache of PyFlink is large enough for all
keys, and its time is the reported run time of the job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.k1_keyed_aggregate import SMALL, Peer, peer_side, same_figures
from benchmarks.measure import Result
from benchmarks.side import Side
from benchmarks.sides import ratio_result, stage_side
from benchmarks.tpch import first_parts, lineitem, lineitem_csv

FILES = 2
LIMIT_SECONDS = 180.0
_LONG_SECONDS = 60.0
_MARGIN = 1.1
KEYS = ("l_suppkey", "l_partkey")

FLINK_GOALS = (20.0, 20.0)
SPARK = Peer("transformWithStateInPandas", "benchmarks.peers.spark_function", (10.0, 40.0))
PROCESS = Peer("pyflink-process from CSV", "benchmarks.peers.flink_function", FLINK_GOALS, ("process",), reads_csv=True)
THREAD = Peer("pyflink-thread from CSV", "benchmarks.peers.flink_function", FLINK_GOALS, ("thread",), reads_csv=True)
PEERS = (SPARK, PROCESS, THREAD)


def run(
    work: Path,
    *,
    quick: bool,
    peers: Sequence[Peer] = PEERS,
    keys: Sequence[str] = KEYS,
    pairs: int = 3,
    limit: float = LIMIT_SECONDS,
) -> list[Result]:
    """Measure both keys against every peer, or a small table against the first peer if ``quick``."""
    if quick:
        peers, keys, pairs = peers[:1], keys[:1], 1
    results: list[Result] = []
    with stage_side(work) as ours:
        for peer in peers:
            with peer_side(peer, work) as theirs:
                results.extend(_compared(ours, theirs, peer, key, work, pairs, limit, quick=quick) for key in keys)
    return results


def _compared(
    ours: Side, theirs: Side, peer: Peer, key: str, work: Path, pairs: int, limit: float, *, quick: bool
) -> Result:
    scale = SMALL if quick else "1"
    files = first_parts(lineitem_csv(scale) if peer.reads_csv else lineitem(scale), FILES, work)
    request: dict[str, Any] = {"files": str(files), "key": key}
    goal = peer.goal(key)
    # With a lower limit, a stopped peer would not prove that the goal is met.
    limit = max(limit, float(round(_MARGIN * goal * ours.seconds(kind="function", **request))))
    readings = _readings(
        lambda: ours.seconds(kind="function", **request), lambda: _within(theirs, peer, request, limit), pairs, limit
    )
    sizes: dict[str, Any] = {"scale": scale, "files": FILES, "stopped after": limit}
    if not peer.reads_csv:
        small = first_parts(lineitem(SMALL), FILES, work)
        sizes["keys of the compared results"] = same_figures(ours, theirs, "function", small, key, work)
    is_stopped = any(reading[1] >= limit for reading in readings)
    case = f"{key} vs {peer.name}{f', stopped after {limit:g} s: at least' if is_stopped else ''}"
    return ratio_result("K2", case, readings, goal, sizes)


def _readings(ours: Callable[[], float], peer: Callable[[], float], pairs: int, limit: float) -> list[list[float]]:
    first = [ours(), peer()]
    if first[1] >= limit:
        return [first]
    # Long runs need no warm-up except for the session, so the first pair counts.
    counted = [first] if first[1] >= _LONG_SECONDS else []
    return counted + [[ours(), peer()] for _ in range(pairs - len(counted))]


def _within(side: Side, peer: Peer, request: dict[str, Any], limit: float) -> float:
    if not side.is_running:
        # Restart and warm up a stopped peer before the next measurement.
        small = lineitem_csv(SMALL) if peer.reads_csv else lineitem(SMALL)
        side.ask(within=limit, **{**request, "files": str(small)})
    return side.seconds(within=limit, **request)
