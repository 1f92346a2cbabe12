"""
K1: sum, count and maximum by key over TPC-H lineitem at the end of the input, with one file per increment.

A checkpoint is taken whenever increments are complete; the streaming peers take one after each file.

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
from benchmarks.tpch import KEYS, PARTS, divided, first_parts, lineitem, lineitem_csv, rows_of

SMALL = "0.01"
"""Scale for the comparison of results with peers that return them row by row."""
FEW_KEYS = KEYS[0]
MANY_FILES = 100


@dataclass(frozen=True, slots=True)
class Peer:
    """
    Peer of a comparison.

    :param goals: Goals for few keys and for many.
    """

    name: str
    module: str
    goals: tuple[float, float]
    arguments: tuple[str, ...] = ()
    reads_csv: bool = False

    def goal(self, key: str) -> float:
        """Return the goal for a key."""
        return self.goals[key != FEW_KEYS]


BATCH = Peer("plain batch without checkpoints", "benchmarks.peers.spark_batch", (1 / 1.5, 1 / 1.1))
ROCKSDB = Peer("spark-rocksdb", "benchmarks.peers.spark_aggregate", (2.0, 4.0), ("rocksdb",))
HDFS = Peer("spark-hdfs", "benchmarks.peers.spark_aggregate", (2.0, 2.5), ("hdfs",))
FLINK = Peer("flink-sql from CSV", "benchmarks.peers.flink_aggregate", (1.2, 2.0), (), reads_csv=True)
PEERS = (BATCH, ROCKSDB, HDFS, FLINK)


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
        results.extend(_changes_after_each_increment(ours, key, pairs, quick=quick) for key in keys)
        results.extend(_many_checkpoints(ours, key, pairs, quick=quick) for key in keys[:2])
    return results


def _changes_after_each_increment(ours: Side, key: str, pairs: int, *, quick: bool) -> Result:
    files = str(lineitem(SMALL if quick else "1"))
    readings = in_turn(
        lambda: ours.seconds(kind="changes", files=files, key=key),
        lambda: ours.seconds(kind="aggregate", files=files, key=key),
        pairs,
    )
    return ratio_result("K1", f"{key}, changes after each increment vs all at the end", readings, None, {})


def _many_checkpoints(ours: Side, key: str, pairs: int, *, quick: bool) -> Result:
    count = PARTS if quick else MANY_FILES
    files, few = str(divided(lineitem(SMALL if quick else "1"), count)), {"files_per_increment": -(-count // PARTS)}
    readings = in_turn(
        lambda: ours.seconds(kind="aggregate", files=files, key=key),
        lambda: ours.seconds(kind="aggregate", files=files, key=key, increment=few),
        pairs,
    )
    case = f"{key}, {count} increments vs {PARTS} of the same files"
    return ratio_result("K1", case, readings, 1 / 1.1, {"files": count})


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
    return ratio_result("K1", f"{key} vs {peer.name}", readings, peer.goal(key), sizes)


def same_figures(ours: Side, theirs: Side, kind: str, files: Path, key: str, work: Path) -> int:
    """Run both sides once, compare their results, and return the number of keys."""
    mine, other = work / uuid.uuid4().hex, work / uuid.uuid4().hex
    ours.ask(kind=kind, files=str(files), key=key, output=str(mine))
    theirs.ask(files=str(files), key=key, output=str(other))
    return require_same_figures(mine, other, key)
