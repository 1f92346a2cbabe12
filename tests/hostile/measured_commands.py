"""
Airflow's own commands in one process, which prints the memory that they took.

``python -m tests.hostile.measured_commands COMMANDS`` takes a JSON list of lists of arguments. The first command loads
what all of them use; the memory of the others, and of the processes that they start, counts above it.
"""

from __future__ import annotations

import json
import resource
import sys

from airflow.__main__ import main as airflow

from tests.hostile.memory import forget_peak, memory_of


def _run(arguments: list[str]) -> None:
    sys.argv = ["airflow", *arguments]
    try:
        airflow()
    except SystemExit as end:
        sys.stderr.write(f"{' '.join(arguments)} ended with {end.code}\n")


def main() -> None:
    first, *others = json.loads(sys.argv[1])
    _run(first)
    idle = memory_of("self", "VmRSS")
    forget_peak("self")
    for each in others:
        _run(each)
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    sys.stdout.write(f"\nmemory {memory_of('self', 'VmHWM') - idle} {children}\n")


if __name__ == "__main__":
    main()
