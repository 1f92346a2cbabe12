"""I1: incremental snapshot after a change of 1 % of the keys, compared with a full snapshot."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from airflow_provider_statecheck.state.arrow.keyed_backend import ArrowKeyedStateBackend
from benchmarks.keyed_state import Subtask, change, distinct_keys, fill
from benchmarks.measure import Result, in_turn, median_ratio, medians, seconds


def run(work: Path, *, quick: bool) -> list[Result]:
    """Measure the bytes and the time of the snapshots, with and without the time for opening and reading the state."""
    count, pairs = (500_000, 3) if quick else (5_000_000, 5)
    keys = distinct_keys(count)
    changed = np.random.default_rng(2).choice(keys, count // 100, replace=False)
    subtask = Subtask(work)
    first, _ = subtask.save(_filled(subtask, keys))
    in_bytes: list[list[float]] = []
    whole: list[list[float]] = []

    def increment() -> float:
        begin = time.perf_counter()
        backend = subtask.open(first)
        change(backend, changed)
        taken, written = _timed_save(subtask, backend)
        mine.append((float(written), time.perf_counter() - begin))
        return taken

    def full() -> float:
        backend = _filled(subtask, keys)
        taken, written = _timed_save(subtask, backend)
        theirs.append((float(written), taken))
        return taken

    mine: list[tuple[float, float]] = []
    theirs: list[tuple[float, float]] = []
    times = in_turn(increment, full, pairs)
    for (new, long), (all_bytes, all_time) in list(zip(mine, theirs, strict=True))[1:]:
        in_bytes.append([new, all_bytes])
        whole.append([long, all_time])
    about = {"keys": count, "changed": len(changed)}
    return [
        _result("1 % changed, bytes", "bytes", in_bytes, 1 / 0.03, about),
        _result("1 % changed, time of the snapshot", "s", times, 1 / 0.10, about),
        _result("1 % changed, time with opening and reading", "s", whole, None, about),
    ]


def _timed_save(subtask: Subtask, backend: ArrowKeyedStateBackend) -> tuple[float, int]:
    written: list[int] = []
    taken = seconds(lambda: written.append(subtask.save(backend)[1]))
    backend.dispose()
    return taken, written[0]


def _filled(subtask: Subtask, keys: object) -> ArrowKeyedStateBackend:
    backend = subtask.open()
    fill(backend, keys)
    return backend


def _result(case: str, unit: str, readings: list[list[float]], goal: float | None, sizes: dict[str, int]) -> Result:
    ours, peer = medians(readings)
    return Result(
        id="I1",
        case=case,
        ours=ours,
        peer=peer,
        unit=unit,
        ratio=median_ratio(readings),
        goal=goal,
        pairs=readings,
        sizes=sizes,
    )
