"""
I2: write and space amplification over 100 increments of 1 % of the keys.

Each increment opens a new backend, as on Spark. The peers are the goals.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from airflow_provider_statecheck.checkpoint.states.handles import KeyedStateHandle
from benchmarks.keyed_state import Subtask, change, distinct_keys, fill
from benchmarks.measure import Result

_MOST_WRITES = 4.0
_MOST_SPACE = 2.0


def run(work: Path, *, quick: bool) -> list[Result]:
    """Measure the written bytes of each snapshot and the bytes that its handle references."""
    count, increments = (200_000, 20) if quick else (5_000_000, 100)
    keys, subtask, random = distinct_keys(count), Subtask(work), np.random.default_rng(3)
    backend = subtask.open()
    fill(backend, keys)
    handle, live = subtask.save(backend)
    written = changed = largest = 0
    for _ in range(increments):
        backend.dispose()
        backend = subtask.open(handle)
        some = random.choice(keys, count // 100, replace=False)
        change(backend, some)
        handle, new = subtask.save(backend)
        written, largest = written + new, max(largest, _referenced_bytes(handle))
        changed += _changed_bytes(work, some)
    backend.dispose()
    about = {"keys": count, "increments": increments}
    return [
        _result(f"{increments} x 1 %, write amplification", written / changed, _MOST_WRITES, about),
        _result(f"{increments} x 1 %, space over live state", largest / live, _MOST_SPACE, about),
    ]


def _referenced_bytes(handle: object) -> int:
    return handle.state_size if isinstance(handle, KeyedStateHandle) else 0


def _changed_bytes(work: Path, keys: object) -> int:
    """Return the size of the changes of an increment in a separate snapshot."""
    subtask = Subtask(work)
    backend = subtask.open()
    fill(backend, keys)
    _, written = subtask.save(backend)
    backend.dispose()
    return written


def _result(case: str, found: float, allowed: float, sizes: dict[str, int]) -> Result:
    return Result(
        id="I2",
        case=case,
        ours=found,
        peer=allowed,
        unit="x",
        ratio=allowed / found,
        goal=1.0,
        pairs=[[found, allowed]],
        sizes=sizes,
    )
