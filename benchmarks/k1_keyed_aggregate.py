"""
K1: sum, count and maximum by key over TPC-H lineitem, with one file per increment and a checkpoint after each.

Each side has a warm session. A measurement is one run over the whole input without earlier state, and the output is
discarded. Flink reads CSV, and our side reads the same CSV in this case. The time of Flink is the reported run time of
the job, without the start of its cluster.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import Result, in_turn
from benchmarks.peers.flink_environment import flink_python
from benchmarks.side import Side
from benchmarks.sides import ratio_result, require_same_figures, stage_side
from benchmarks.tpch import KEYS, first_parts, lineitem, lineitem_csv, rows_of

SMALL = "0.01"
"""Scale for the comparison of results with peers that return them row by row."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Peer of a comparison."""

    name: str
    module: str
    goal: float
    arguments: tuple[str, ...] = ()
    reads_csv: bool = False


ROCKSDB = Peer("spark-rocksdb", "benchmarks.peers.spark_aggregate", 3.0, ("rocksdb",))
HDFS = Peer("spark-hdfs", "benchmarks.peers.spark_aggregate", 2.0, ("hdfs",))
FLINK = Peer("flink-sql from CSV", "benchmarks.peers.flink_aggregate", 2.0, (), reads_csv=True)
PEERS = (ROCKSDB, HDFS, FLINK)


def run(
    work: Path, *, quick: bool, peers: Sequence[Peer] = PEERS, keys: Sequence[str] = KEYS, pairs: int = 5
) -> list[Result]:
    """Measure every key against every peer, or a small table against the first peer if ``quick``."""
    if quick:
        peers, keys, pairs = peers[:1], keys[:1], 1
    results: list[Result] = []
    with stage_side(work) as ours:
        for peer in peers:
            with peer_side(peer, work) as theirs:
                results.extend(_compared(ours, theirs, peer, key, work, pairs, quick=quick) for key in keys)
    return results


def peer_side(peer: Peer, work: Path) -> Side:
    """Return the unstarted process of a peer."""
    folder = work / f"{peer.name.split()[0]}"
    log, arguments = folder.with_suffix(".log"), [str(folder), *peer.arguments]
    if peer.reads_csv:
        return Side(peer.module, log, python=flink_python(), arguments=arguments)
    return Side(peer.module, log, arguments=arguments)


def _compared(ours: Side, theirs: Side, peer: Peer, key: str, work: Path, pairs: int, *, quick: bool) -> Result:
    scale = SMALL if quick else "1"
    files = lineitem_csv(scale) if peer.reads_csv else lineitem(scale)
    if quick:
        files = first_parts(files, 2, work)
    request: dict[str, Any] = {"files": str(files), "key": key}
    readings = in_turn(lambda: ours.seconds(kind="aggregate", **request), lambda: theirs.seconds(**request), pairs)
    checked = first_parts(lineitem_csv(SMALL), 1, work) if peer.reads_csv else files
    count = same_figures(ours, theirs, "aggregate", checked, key, work)
    sizes = {"scale": scale, "rows": rows_of(lineitem(scale)), "keys of the compared results": count}
    return ratio_result("K1", f"{key} vs {peer.name}", readings, peer.goal, sizes)


def same_figures(ours: Side, theirs: Side, kind: str, files: Path, key: str, work: Path) -> int:
    """Run both sides once, compare their results, and return the number of keys."""
    mine, other = work / uuid.uuid4().hex, work / uuid.uuid4().hex
    ours.ask(kind=kind, files=str(files), key=key, output=str(mine))
    theirs.ask(files=str(files), key=key, output=str(other))
    return require_same_figures(mine, other, key)
