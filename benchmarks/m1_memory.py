"""M1: state of 50 million keys is built, saved and scanned with 512 MB of memory for Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.measure import Result

_LIMIT_MB = 512.0
_CHUNK = 250_000

_PROGRAM = """
import resource, sys
from pathlib import Path
import numpy as np
from benchmarks.keyed_state import KEY_GROUPS, KEYS, BALANCE, Subtask, fill
count, subtask = int(sys.argv[2]), Subtask(Path(sys.argv[1]))
backend = subtask.open()
for start in range(0, count, {chunk}):
    fill(backend, np.arange(start, min(start + {chunk}, count)))
handle, size = subtask.save(backend)
backend.dispose()
backend = subtask.open(handle)
fill(backend, np.arange(0, count, 100), seed=2)
handle, _ = subtask.save(backend)
backend.dispose()
rows = sum(len(keys) for keys, _ in subtask.open(handle).scan(BALANCE))
print(rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def run(work: Path, *, quick: bool) -> list[Result]:
    """Measure the maximum resident size of a separate process."""
    count = 5_000_000 if quick else 50_000_000
    program = _PROGRAM.format(chunk=_CHUNK)
    result = subprocess.run(
        [sys.executable, "-c", program, str(work), str(count)], check=True, capture_output=True, text=True
    )
    rows, peak = result.stdout.split()
    if int(rows) != count:
        raise RuntimeError(f"Expected {count} rows, found {rows}.")
    return [
        Result(
            id="M1",
            case="keys built, saved, changed and scanned",
            ours=float(peak),
            peer=_LIMIT_MB,
            unit="MB",
            ratio=_LIMIT_MB / float(peak),
            goal=1.0,
            pairs=[[float(peak), _LIMIT_MB]],
            sizes={"keys": count},
        )
    ]
